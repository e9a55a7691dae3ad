"""The context contract: `max_model_len` follows from the workload, or the user caps it and is told what that rejects.

vLLM answers 400 to a request whose prompt and asked output do not fit together (vLLM 0.32 renderers/params.py: the
prompt may have max_model_len minus the output tokens); such rows are workload errors, settled before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from optimizer.errors import UserError
from optimizer.workload.trace import Trace

TooLong = Literal["refuse", "drop", "truncate"]
MARGIN_TOKENS, ROUND_TO_TOKENS = 64, 256
"""Room above the longest request (special tokens, templates), and the multiple it is rounded up to."""


@dataclass(frozen=True)
class ContextContract:
    """A trace that fits `max_model_len`, and what had to be done for it. Dropping and truncating change the trace's
    content hash, so results on a capped workload are never taken for results on the whole."""

    max_model_len: int
    trace: Trace
    n_too_long: int
    needed_tokens: int
    """Largest prompt + output of the whole workload."""
    policy: TooLong
    text: str

    @property
    def too_long_share(self) -> float:
        n = len(self.trace) + (self.n_too_long if self.policy == "drop" else 0)
        return self.n_too_long / n


def fit_context(trace: Trace, max_model_len: int | None = None, *, too_long: TooLong = "refuse") -> ContextContract:
    """Without a cap: the workload's maximum plus a margin. With one: rows above it are refused (UserError), dropped,
    or truncated (output first kept, prompt shortened to fit).

    Raises UserError, too, when nothing is left."""
    total = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    needed = int(total.max()) if len(trace) else 0
    if max_model_len is None:
        length = -(-(needed + MARGIN_TOKENS) // ROUND_TO_TOKENS) * ROUND_TO_TOKENS
        return ContextContract(
            length, trace, 0, needed, too_long, f"max_model_len {length:,} (longest request {needed:,})"
        )
    if max_model_len < 2:
        raise UserError(f"max_model_len {max_model_len}: expected at least 2 tokens")
    over = total > max_model_len
    n_over = int(over.sum())
    said = f"{n_over:,} of {len(trace):,} requests cannot be served at max_model_len {max_model_len:,}"
    if n_over and too_long == "refuse":
        raise UserError(f"{said}: raise it (needs {needed:,}), or say whether to drop or truncate them")
    if n_over == len(trace) and too_long == "drop":
        raise UserError(f"{said}: nothing is left; raise it (needs {needed:,}) or truncate")
    kept = trace if not n_over else _dropped(trace, over) if too_long == "drop" else _truncated(trace, max_model_len)
    done = {"drop": "dropped", "truncate": "truncated", "refuse": ""}[too_long]
    share = f"{said} ({n_over / max(len(trace), 1):.2%}): {done}" if n_over else "every request fits"
    if n_over and too_long == "drop":
        share += f"; raise it to {needed:,} to keep them all, or cut them with --too-long truncate"
    return ContextContract(max_model_len, kept, n_over, needed, too_long, f"max_model_len {max_model_len:,}: {share}")


def _dropped(trace: Trace, over: NDArray[np.bool_]) -> Trace:
    return trace.take(np.flatnonzero(~over))


def _truncated(trace: Trace, length: int) -> Trace:
    output = np.minimum(trace.output_tokens, length - 1)
    prompt = np.minimum(trace.prompt_tokens, length - output)
    cut = replace(trace, prompt_tokens=prompt.astype(np.int32), output_tokens=output.astype(np.int32))
    if trace.prefix_ids is None or trace.prefix_start is None:
        return cut
    counts = np.diff(trace.prefix_start)
    kept = np.minimum(counts, -(-prompt.astype(np.int64) // trace.prefix_block_tokens))
    position = np.arange(trace.prefix_ids.size) - np.repeat(trace.prefix_start[:-1], counts)
    ids = trace.prefix_ids[position < np.repeat(kept, counts)]
    return replace(cut, prefix_ids=ids, prefix_start=np.concatenate([[0], np.cumsum(kept)]))
