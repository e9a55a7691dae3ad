from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from optimizer.engines.simulator.kv_cache import BlockPool, Held, Hit
from optimizer.engines.simulator.prefixes import NO_PREFIX, Prefix, content_keys
from optimizer.workload.trace import Trace

sys.path.insert(0, str(Path(__file__).parent))
from driving import blocks


def publish(pool: BlockPool, prefix: Prefix, n_blocks: int) -> Held:
    held: Held = []
    pool.take(n_blocks)
    assert pool.register(prefix, held, 0, n_blocks) == len(prefix)
    return held


def hit(pool: BlockPool, prefix: Prefix, owner: int = 9) -> Hit:
    return pool.longest_hit(prefix, owner, 8)


def n_hit(pool: BlockPool, prefix: Prefix) -> tuple[int, int]:
    """(blocks hit, how many of them are free)"""
    found = hit(pool, prefix)
    return found.n_blocks, found.n_free


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
    held = publish(pool, blocks(1, 2), n_blocks=3)
    pool.release(0, 3, 2, held, 2)
    pool.take(3)  # two never used, one blank
    assert n_hit(pool, blocks(1, 2)) == (2, 2)


@pytest.mark.parametrize("prefix", [blocks(1, 2, 3), Prefix((1,), (3,)), Prefix((1, 2), (2, 3))])
def test_the_deepest_block_is_evicted_first(prefix: Prefix) -> None:
    pool = BlockPool(6)
    held = publish(pool, prefix, n_blocks=3)
    pool.release(0, 3, 3, held, 3)
    pool.take(3)
    assert n_hit(pool, prefix) == (2, 2)


def test_least_recently_freed_goes_first() -> None:
    pool = BlockPool(5)
    first, second = publish(pool, blocks(1), 1), publish(pool, blocks(2), 1)
    pool.release(0, 1, 1, first, 1)
    pool.release(1, 1, 1, second, 1)
    held = pool.claim(hit(pool, blocks(1)), 5)  # used again: now the younger of the two
    pool.release(5, 1, 1, held, 1)
    pool.take(3)
    assert n_hit(pool, blocks(1)) == (1, 1)
    assert n_hit(pool, blocks(2)) == (0, 0)


def test_a_hit_on_a_free_block_leaves_the_free_queue_once() -> None:
    pool = BlockPool(5)
    held = publish(pool, blocks(1), 1)
    pool.release(0, 1, 1, held, 1)
    assert pool.n_free == 4
    one = pool.claim(hit(pool, blocks(1)), 1)
    two = pool.claim(hit(pool, blocks(1)), 2)
    assert pool.n_free == 3
    pool.release(1, 1, 1, one, 1)
    assert pool.n_free == 3
    pool.release(2, 1, 1, two, 1)
    assert pool.n_free == 4


def test_duplicates_are_not_merged_and_the_older_is_hit() -> None:
    pool = BlockPool(5)
    first, second = publish(pool, blocks(1), 1), publish(pool, blocks(1), 1)
    assert first != second
    assert hit(pool, blocks(1)).parts[0][0] is first[0][0]
    pool.release(0, 1, 1, first, 1)
    pool.take(3)  # evicts the older copy, the other is in use
    assert hit(pool, blocks(1)).parts[0][0] is second[0][0]


def test_a_part_of_a_run_is_hit_and_the_rest_stays_where_it_was() -> None:
    pool = BlockPool(20)
    long, other = Prefix((1,), (6,)), blocks(7)
    held = publish(pool, long, 6)
    pool.release(0, 6, 6, held, 6)
    pool.release(1, 1, 1, publish(pool, other, 1), 1)
    part = pool.claim(hit(pool, Prefix((1,), (2,))), 2)
    assert pool.n_free == 17
    pool.take(12)  # never used
    pool.take(4)  # the four deeper blocks are the oldest
    assert n_hit(pool, long) == (2, 0)
    assert n_hit(pool, other) == (1, 1)
    pool.release(2, 2, 2, part, 2)
    assert pool.n_free == 3


def test_who_held_a_run_before_it_was_cut_frees_all_of_it() -> None:
    pool = BlockPool(9)
    long = Prefix((1,), (6,))
    whole = publish(pool, long, 6)
    part = pool.claim(hit(pool, Prefix((1,), (2,))), 2)
    smaller = pool.claim(hit(pool, Prefix((1,), (1,))), 3)
    assert pool.n_free == 2
    pool.release(0, 6, 6, whole, 6)
    assert pool.n_free == 6
    pool.release(2, 2, 2, part, 2)
    assert pool.n_free == 7
    pool.release(3, 1, 1, smaller, 1)
    assert pool.n_free == 8
    assert n_hit(pool, long) == (6, 6)


def test_chunks_of_one_prompt_are_published_as_they_are_computed() -> None:
    pool = BlockPool(20)
    prefix, held = Prefix((1, 2), (5, 9)), Held()
    pool.take(9)
    assert [pool.register(prefix, held, n, n + 3) for n in (0, 3, 6)] == [3, 6, 9]
    assert [n for _, n in held] == [5, 4]
    assert pool.longest_hit(prefix, 1, 20).n_shared == 9


def test_private_blocks_are_hit_by_their_owner_only() -> None:
    pool = BlockPool(10)
    pool.take(4)
    pool.release(7, 4, 3, [], 0)
    assert hit(pool, NO_PREFIX, 7) == Hit((), 0, 3, 3)
    assert hit(pool, NO_PREFIX, 8) == Hit()
    pool.take(7)  # evicts one of the three
    found = hit(pool, NO_PREFIX, 7)
    assert found == Hit((), 0, 2, 2)
    pool.claim(found, 7)
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
    a, b, c, d = content_keys(trace, range(4), 16)
    assert a == b
    assert a.ends == (8,)  # two trace blocks of four engine blocks, always together; the third is nobody else's
    assert c == d
    assert not set(a.runs) & set(c.runs)


def test_a_run_ends_where_requests_part() -> None:
    trace = trace_with([[1, 2, 3], [1, 2, 3], [1, 2, 4], [1, 2, 4], [1]], [192, 160, 192, 192, 64], 64)
    a, b, c, d, e = content_keys(trace, range(5), 16)
    assert (a.ends, b.ends, e.ends) == ((4, 8, 12), (4, 8, 10), (4,))
    assert a.runs == b.runs
    assert c == d
    assert a.runs[:2] == c.runs[:2]
    assert a.runs[2] != c.runs[2]
    assert e.runs == a.runs[:1]


def test_a_block_that_straddles_trace_blocks_belongs_to_the_later_one() -> None:
    trace = trace_with([[1, 2], [1, 3]], [48, 48], 24)
    first, second = content_keys(trace, range(2), 16)
    assert first == second
    assert len(first) == 1


def test_rows_without_ids_have_no_prefix() -> None:
    trace = trace_with([[], [1], [1]], [64, 64, 64], 64)
    assert [len(p) for p in content_keys(trace, range(3), 16)] == [0, 4, 4]
