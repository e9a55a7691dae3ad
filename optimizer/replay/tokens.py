"""The prompts' tokens: deterministic, exact in length, shared where the trace shares and nowhere else.

Tokens are hashes of (seed, block id or row, position), so that every process draws the same ones without a table.
Shared runs take even ranks of the safe range and unique runs odd ones, and a unique run begins with its row's number:
no unique run equals a shared one, or another row's, at any alignment.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from optimizer.workload.trace import Trace

LOWEST_ID, HIGHEST_SHARE = 1000, 32
"""Special tokens lie at the ends of vocabularies: up to 1,000 first ids (Mistral's Tekken), the last 1/64 to 1/100
(Llama 4, Qwen 3). Left out: the first 1,000 ids (an eighth of a small vocabulary) and the last 1/32."""
_SHARED, _UNIQUE = np.uint64(1), np.uint64(2)
_STEP = np.uint64(0x9E3779B97F4A7C15)
"""SplitMix64's increment and multipliers (Steele, Lea, Flood 2014)."""
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def safe_ids(vocabulary: int) -> NDArray[np.int32]:
    """Ids that are ordinary tokens in every tokenizer we know."""
    return np.arange(min(LOWEST_ID, vocabulary // 8), vocabulary - vocabulary // HIGHEST_SHARE, dtype=np.int32)


class TokenRuns:
    """The tokens of every row of one trace, as ranks in an alphabet of `n_symbols`."""

    def __init__(self, trace: Trace, n_symbols: int, seed: int) -> None:
        self._trace = trace
        self._n_half = np.uint64(n_symbols // 2)
        with np.errstate(over="ignore"):
            self._shared_key = _mixed(np.uint64(seed) * np.uint64(4) + _SHARED)
            self._unique_key = _mixed(np.uint64(seed) * np.uint64(4) + _UNIQUE)
        self._n_digits = _digits(len(trace), int(self._n_half))

    def ranks(self, row: int) -> NDArray[np.int64]:
        """(prompt tokens,) ranks of one row's tokens."""
        n = int(self._trace.prompt_tokens[row])
        shared = self._shared(self._trace.blocks_of(row), n)
        return np.concatenate([shared, self._unique(row, n - shared.size)])

    def _shared(self, blocks: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        """The blocks' runs one after the other, at most n tokens: the last one may be cut."""
        length = self._trace.prefix_block_tokens
        blocks = blocks[: -(-n // length)] if length else blocks[:0]
        with np.errstate(over="ignore"):
            key = _mixed(blocks.astype(np.uint64) ^ self._shared_key)[:, None]
            drawn = _mixed(key + np.arange(length, dtype=np.uint64) * _STEP).reshape(-1)[:n]
        return 2 * (drawn % self._n_half).astype(np.int64)

    def _unique(self, row: int, n: int) -> NDArray[np.int64]:
        with np.errstate(over="ignore"):
            key = _mixed(np.uint64(row) ^ self._unique_key)
            drawn = _mixed(key + np.arange(n, dtype=np.uint64) * _STEP) % self._n_half
        number = row
        for place in range(min(self._n_digits, n)):
            number, drawn[place] = divmod(number, int(self._n_half))
        return 2 * drawn.astype(np.int64) + 1


def _mixed(values: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    values = np.asarray(values + _STEP, np.uint64)
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def _digits(n_rows: int, base: int) -> int:
    n = 1
    while base**n < n_rows:
        n += 1
    return n
