"""A running peer for the replay's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.replay.streaming_peer import Peer


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as running:
        yield running
