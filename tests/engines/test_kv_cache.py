from __future__ import annotations

import numpy as np
import pytest

from optimizer.engines.simulator.kv_cache import BlockPool
from optimizer.engines.simulator.prefixes import content_keys
from optimizer.workload.trace import Trace


def publish(pool: BlockPool, keys: list[int], owner: int, n_blocks: int) -> list[int]:
    held: list[int] = []
    pool.take(n_blocks)
    pool.register(keys, held)
    return held


def test_the_null_block_is_never_free() -> None:
    pool = BlockPool(10)
    assert pool.n_free == 9
    pool.take(9)
    assert pool.usage == 1.0
    with pytest.raises(ValueError, match="cannot take 1 of 0"):
        pool.take(1)


def test_a_pool_needs_a_usable_block() -> None:
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockPool(1)


def test_blanks_are_reused_before_cached_contents() -> None:
    pool = BlockPool(6)
    held = publish(pool, [1, 2], owner=0, n_blocks=3)
    pool.release(0, 3, 2, held)
    pool.take(3)  # two never used, one blank
    assert pool.longest_hit([1, 2], 9, 8)[0] == [1, 2]


def test_the_deepest_block_is_evicted_first() -> None:
    pool = BlockPool(6)
    held = publish(pool, [1, 2, 3], owner=0, n_blocks=3)
    pool.release(0, 3, 3, held)
    pool.take(3)
    assert pool.longest_hit([1, 2, 3], 9, 8) == ([1, 2], 0, 2)


def test_least_recently_freed_goes_first() -> None:
    pool = BlockPool(5)
    first, second = publish(pool, [1], 0, 1), publish(pool, [2], 1, 1)
    pool.release(0, 1, 1, first)
    pool.release(1, 1, 1, second)
    pool.claim([1], 5, 0)  # used again: now the younger of the two
    pool.release(5, 1, 1, [1])
    pool.take(3)
    assert pool.longest_hit([1], 9, 8)[0] == [1]
    assert pool.longest_hit([2], 9, 8)[0] == []


def test_a_hit_on_a_free_block_leaves_the_free_queue_once() -> None:
    pool = BlockPool(5)
    held = publish(pool, [1], 0, 1)
    pool.release(0, 1, 1, held)
    assert pool.n_free == 4
    pool.claim([1], 1, 0)
    pool.claim([1], 2, 0)
    assert pool.n_free == 3
    pool.release(1, 1, 1, [1])
    assert pool.n_free == 3
    pool.release(2, 1, 1, [1])
    assert pool.n_free == 4


def test_duplicates_are_not_merged_and_the_older_is_hit() -> None:
    pool = BlockPool(5)
    first, second = publish(pool, [1], 0, 1), publish(pool, [1], 1, 1)
    assert first != second
    assert pool.longest_hit([1], 9, 8)[0] == first
    pool.release(0, 1, 1, first)
    pool.take(3)  # evicts the older copy, the other is in use
    assert pool.longest_hit([1], 9, 8)[0] == second


def test_private_blocks_are_hit_by_their_owner_only() -> None:
    pool = BlockPool(10)
    pool.take(4)
    pool.release(7, 4, 3, [])
    assert pool.longest_hit([], 7, 8) == ([], 3, 3)
    assert pool.longest_hit([], 8, 8) == ([], 0, 0)
    pool.take(7)  # evicts one of the three
    assert pool.longest_hit([], 7, 8) == ([], 2, 2)
    pool.claim([], 7, 2)
    assert pool.n_free == 0


def trace_with(chains: list[list[int]], prompts: list[int], prefix_block: int) -> Trace:
    ids = [np.array(c, np.int64) for c in chains]
    return Trace(
        arrival_s=np.zeros(len(chains)),
        prompt_tokens=np.array(prompts, np.int32),
        output_tokens=np.ones(len(chains), np.int32),
        tenant=np.zeros(len(chains), np.int16),
        prefix_ids=np.concatenate(ids),
        prefix_start=np.concatenate([[0], np.cumsum([i.size for i in ids])]).astype(np.int64),
        prefix_block_tokens=prefix_block,
    )


def test_equal_chains_share_and_equal_ids_behind_a_difference_do_not() -> None:
    trace = trace_with([[1, 2, 3], [1, 2, 4], [9, 2, 3], [9, 5]], [192, 192, 192, 128], 64)
    a, b, c, d = (list(k) for k in content_keys(trace, range(4), 16))
    assert a == b
    assert len(a) == 8  # two trace blocks of four engine blocks; the third is nobody else's
    assert c == d
    assert not set(a) & set(c)


def test_a_block_that_straddles_trace_blocks_belongs_to_the_later_one() -> None:
    trace = trace_with([[1, 2], [1, 3]], [48, 48], 24)
    first, second = (list(k) for k in content_keys(trace, range(2), 16))
    assert first == second
    assert len(first) == 1


def test_rows_without_ids_have_no_keys() -> None:
    trace = trace_with([[], [1], [1]], [64, 64, 64], 64)
    assert [len(k) for k in content_keys(trace, range(3), 16)] == [0, 4, 4]
