"""Content keys of prompts: which full KV blocks of a load's requests hold the same tokens.

A trace names a prompt's leading tokens by block ids (Mooncake: 512 tokens each); equal chains of ids mean equal
tokens, a different id anywhere before makes everything after it different, as in vLLM's chained block hashes. An
engine block is named by the chain up to the trace block that holds its last token. Generated tokens, and tokens
beyond the ids, are taken to be the request's own. Chains that only one request of the load has can never be hit by
another and get no key.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from optimizer.workload.trace import Trace


def content_keys(trace: Trace, rows: Seq[int], block_size: int) -> list[Seq[int]]:
    """For each of `rows`, the keys of its leading shareable full blocks; empty without prefix ids."""
    if trace.prefix_ids is None or trace.prefix_block_tokens < 1:
        return [() for _ in rows]
    chains = [trace.blocks_of(row).tolist() for row in rows]
    nodes, n_visits = _chain_nodes(chains)
    return [
        _keys(node, n_visits, int(trace.prompt_tokens[row]), trace.prefix_block_tokens, block_size)
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


def _keys(path: list[int], n_visits: list[int], prompt: int, prefix_block: int, block: int) -> list[int]:
    n_shared = next((i for i, node in enumerate(path) if n_visits[node] < 2), len(path))
    n_full = min(prompt, n_shared * prefix_block) // block
    if not n_full:
        return []
    index = np.arange(n_full, dtype=np.int64)
    of_node = np.asarray(path, np.int64)[((index + 1) * block - 1) // prefix_block]
    stride = prefix_block // block + 2
    keys: list[int] = (of_node * stride + index % stride).tolist()
    return keys
