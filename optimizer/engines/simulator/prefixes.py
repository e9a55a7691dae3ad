"""Prefixes of prompts: which full KV blocks of a load's requests hold the same tokens.

A trace names a prompt's leading tokens by block ids (Mooncake: 512 tokens each); equal chains of ids mean equal
tokens, a different id anywhere before makes everything after it different, as in vLLM's chained block hashes. An
engine block belongs to the chain up to the trace block that holds its last token. Generated tokens, and tokens
beyond the ids, are taken to be the request's own. Chains that only one request of the load has can never be hit by
another and are left out. What always comes together (a stretch of a chain that the same requests have) is one run, so
that a prompt of thousands of blocks is a few runs.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from optimizer.workload.trace import Trace


@dataclass(frozen=True, slots=True)
class Prefix:
    """The leading full blocks of a prompt that other requests share. Its length is their number.

    A run is the same blocks in the same order wherever it stands; a prompt may end inside its last one."""

    runs: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    """Blocks up to the end of each run, ascending."""

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0


NO_PREFIX = Prefix()


def content_keys(trace: Trace, rows: Seq[int], block_size: int) -> list[Prefix]:
    """For each of `rows`; empty without prefix ids."""
    if trace.prefix_ids is None or trace.prefix_block_tokens < 1:
        return [NO_PREFIX for _ in rows]
    chains = [trace.blocks_of(row).tolist() for row in rows]
    nodes, n_visits = _chain_nodes(chains)
    return [
        _prefix(node, n_visits, int(trace.prompt_tokens[row]), trace.prefix_block_tokens, block_size)
        for row, node in zip(rows, nodes, strict=True)
    ]


def _chain_nodes(chains: list[list[int]]) -> tuple[list[list[int]], list[int]]:
    """Number every distinct chain; returns each row's chain numbers and the rows that visit each."""
    numbers: dict[tuple[int, int], int] = {}
    n_visits: list[int] = [0]
    nodes: list[list[int]] = []
    for chain in chains:
        node, path = 0, []
        for block_id in chain:
            node = numbers.setdefault((node, block_id), len(numbers) + 1)
            if node == len(n_visits):
                n_visits.append(0)
            n_visits[node] += 1
            path.append(node)
        nodes.append(path)
    return nodes, n_visits


def _prefix(path: list[int], n_visits: list[int], prompt: int, prefix_block: int, block: int) -> Prefix:
    """A run begins where fewer requests go on than came: those that go on go together."""
    runs: list[int] = []
    ends: list[int] = []
    run, visitors, end = 0, 0, 0
    for depth, node in enumerate(path):
        n = n_visits[node]
        if n < 2:
            break
        if n != visitors:
            run, visitors = node, n
        reached = min((depth + 1) * prefix_block, prompt) // block
        if reached == end:
            continue
        end = reached
        if runs and runs[-1] == run:
            ends[-1] = end
        else:
            runs.append(run)
            ends.append(end)
    return Prefix(tuple(runs), tuple(ends))
