"""Prefix structure of a trace: families of requests that share content, and how much a cache of a size can reuse."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from optimizer.workload.trace import Trace

COMMON_SHARE, MIN_COMMON_ROWS = 0.05, 16
"""A block in more rows than both is common to the service (a system prompt), not to one conversation."""


def common_ids(trace: Trace) -> NDArray[np.int64]:
    """Ids of blocks that belong to no single conversation, ascending."""
    if trace.prefix_ids is None:
        return np.empty(0, np.int64)
    ids, counts = np.unique(trace.prefix_ids, return_counts=True)
    return ids[counts > max(COMMON_SHARE * len(trace), MIN_COMMON_ROWS)]


def families(trace: Trace) -> NDArray[np.int64]:
    """(n,) family of each row, 0..k-1: its session; else its first block not common to the service; else itself.

    Rows of a family are kept or left out together, so that reuse inside a conversation survives a change of rate."""
    n = len(trace)
    if trace.session is not None:
        return _numbered(trace.session)
    if trace.prefix_ids is None or trace.prefix_start is None:
        return np.arange(n)
    row = np.repeat(np.arange(n), np.diff(trace.prefix_start))
    own = np.flatnonzero(~np.isin(trace.prefix_ids, common_ids(trace)))
    rows_with, first = np.unique(row[own], return_index=True)
    _, ids = np.unique(trace.prefix_ids, return_inverse=True)
    key = ids.max(initial=0) + 1 + np.arange(n)
    key[rows_with] = ids[own[first]]
    return _numbered(key)


def _numbered(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keys renumbered in order of first appearance."""
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(first.size)
    return rank[inverse]


def reusable_tokens(trace: Trace, cache_tokens: int | None = None) -> NDArray[np.int64] | None:
    """(n,) prompt tokens of each row whose leading blocks are cached when it arrives; None without block ids.

    `cache_tokens`: room of a least-recently-used cache, None for one without end. Blocks of one request are used in
    prompt order; generated tokens are not cached. An engine that is busy finds less (blocks of running requests)."""
    if trace.prefix_ids is None or trace.prefix_start is None:
        return None
    runs = _endless_runs(trace) if cache_tokens is None else _lru_runs(trace, cache_tokens // trace.prefix_block_tokens)
    return np.minimum(runs * trace.prefix_block_tokens, trace.prompt_tokens)


def _endless_runs(trace: Trace) -> NDArray[np.int64]:
    """(n,) leading blocks that an earlier row had."""
    assert trace.prefix_ids is not None and trace.prefix_start is not None
    start = trace.prefix_start
    row = np.repeat(np.arange(len(trace)), np.diff(start))
    _, first, inverse = np.unique(trace.prefix_ids, return_index=True, return_inverse=True)
    is_new = row[first[inverse]] == row
    position = np.arange(row.size) - start[row]
    runs = np.diff(start).copy()
    np.minimum.at(runs, row[is_new], position[is_new])
    return runs


def _lru_runs(trace: Trace, n_blocks: int) -> NDArray[np.int64]:
    assert trace.prefix_ids is not None and trace.prefix_start is not None
    cache: OrderedDict[int, None] = OrderedDict()
    ids, bounds = trace.prefix_ids.tolist(), trace.prefix_start.tolist()
    runs = np.zeros(len(trace), np.int64)
    for row in range(len(trace)):
        own = ids[bounds[row] : bounds[row + 1]]
        runs[row] = next((k for k, block in enumerate(own) if block not in cache), len(own))
        for block in own:
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > n_blocks:
            cache.popitem(last=False)
    return runs
