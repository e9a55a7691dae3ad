"""Prefix block ids of a file's rows (Mooncake `hash_ids`), and how many tokens a block stands for."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CANDIDATE_BLOCK_TOKENS = (512, 16, 256, 128, 64, 32, 1024, 2048, 4096, 8)
"""Block sizes in use, the publishers' first: Mooncake 512 (kvcache-ai/Mooncake FAST25-release), vLLM's timed_trace and
Qwen-Bailian 16 (vLLM 0.32 benchmarks/datasets)."""


@dataclass(frozen=True)
class Blocks:
    """The block columns of a Trace; None and 0 when no row has ids."""

    ids: NDArray[np.int64] | None = None
    start: NDArray[np.int64] | None = None
    block_tokens: int = 0
    notices: tuple[str, ...] = ()


class BlockColumn:
    """Block ids row after row. Ids that are no whole numbers from 0 to 2^62 (hex digests) are numbered from -1 down."""

    def __init__(self) -> None:
        self._ids = array("q")
        self._counts = array("q")
        self._numbered: dict[str, int] = {}
        self.has_any = False

    def add(self, cells: Sequence[Any] | None, kept: NDArray[np.intp]) -> None:
        if cells is None:
            self._counts.extend([0] * kept.size)
            return
        for i in kept:
            ids = cells[i]
            n_before = len(self._ids)
            if isinstance(ids, list) and ids:
                self._extend(ids)
            self._counts.append(len(self._ids) - n_before)

    def _extend(self, ids: list[Any]) -> None:
        self.has_any = True
        if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < 2**62:
            self._ids.extend(ids)
            return
        numbered = self._numbered
        self._ids.extend([numbered.setdefault(str(x), -1 - len(numbered)) for x in ids])

    def finish(self, prompt_tokens: NDArray[np.int32]) -> Blocks:
        if not self.has_any:
            return Blocks()
        counts = np.frombuffer(self._counts, np.int64).copy()
        ids = np.frombuffer(self._ids, np.int64).copy()
        size, told = infer_block_tokens(prompt_tokens, counts)
        ids, counts, cut = _without_surplus(ids, counts, -(-prompt_tokens.astype(np.int64) // size))
        n_without = int((counts == 0).sum())
        lone = (f"{n_without:,} rows have no block ids: their prompts count as unique",) if n_without else ()
        return Blocks(ids, np.concatenate([[0], np.cumsum(counts)]), size, (told, *cut, *lone))


def infer_block_tokens(prompt_tokens: NDArray[np.int32], counts: NDArray[np.int64]) -> tuple[int, str]:
    """Block size B for which ceil(prompt / B) is the number of ids in the most rows; and the words for it."""
    has = counts > 0
    prompt, count = prompt_tokens[has].astype(np.int64), counts[has]
    shares = {b: float(np.mean(-(-prompt // b) == count)) for b in CANDIDATE_BLOCK_TOKENS}
    best = max(shares, key=lambda b: shares[b])
    low = int(np.max(-(-prompt // count)))
    high = int(np.min(-(-prompt[count > 1] // (count[count > 1] - 1)) - 1, initial=2**31))
    if shares[best] == 1.0:
        fits = f"{low}..{high} fits all rows" if high < 2**31 else f"{low} or more fits all rows"
        return best, f"prefix blocks of {best} tokens ({fits})"
    if low <= high:
        return low, f"prefix blocks of {low} tokens ({low}..{high} fits all rows; an unusual size)"
    return best, f"prefix blocks of {best} tokens (fits {shares[best]:.1%} of the rows that have ids)"


def _without_surplus(
    ids: NDArray[np.int64], counts: NDArray[np.int64], most: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """Ids beyond the prompt's end are cut: a row owns at most ceil(prompt / block) blocks."""
    kept = np.minimum(counts, most)
    n_cut = int((counts - kept).sum())
    if not n_cut:
        return ids, counts, ()
    position = np.arange(ids.size) - np.repeat(np.cumsum(counts) - counts, counts)
    told = f"{n_cut:,} block ids beyond the end of their prompts were cut"
    return ids[position < np.repeat(kept, counts)], kept, (told,)
