"""The scheduler's arguments, and what one of its steps decided."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.engines.simulator.sequence import Sequence


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """The scheduler's arguments, resolved. Names are vLLM's where it has one."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_size: int = 16
    max_num_active_seqs: int | None = None
    max_num_scheduled_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    is_threshold_adaptive: bool = False
    is_prefill_chunked: bool = True
    reserves_full_prompt: bool = True
    """vLLM's scheduler_reserve_full_isl."""
    watermark: float = 0.0
    is_async: bool = True
    is_prefix_cached: bool = True
    max_num_queued_reqs: int | None = None

    @property
    def step_tokens(self) -> int:
        if self.max_num_scheduled_tokens is None:
            return self.max_num_batched_tokens
        return min(self.max_num_scheduled_tokens, self.max_num_batched_tokens)

    @property
    def seats(self) -> int:
        """Most requests in the running set."""
        return self.max_num_seqs if self.max_num_active_seqs is None else self.max_num_active_seqs

    @property
    def is_admission_easier_in_company(self) -> bool:
        """Every request more in the system makes chunks smaller, and a first chunk is all that must find blocks."""
        is_shrinking = self.is_threshold_adaptive and self.long_prefill_token_threshold > 0
        return is_shrinking and not self.reserves_full_prompt

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def threshold(self, n_eligible: int) -> int:
        """Most prompt tokens of one request in a step; 0: no cap (also for a request that is alone in the system)."""
        if not self.long_prefill_token_threshold or n_eligible <= 1:
            return 0
        if self.is_threshold_adaptive:
            return max(self.long_prefill_token_threshold, self.max_num_batched_tokens // n_eligible)
        return self.long_prefill_token_threshold


class Step:
    """What one schedule() decided. Empty steps have no tokens."""

    __slots__ = ("chunks", "contexts", "finishing", "index", "n_decodes", "n_sampled", "n_tokens", "victims")

    def __init__(self, index: int) -> None:
        self.index = index
        self.chunks: list[tuple[Sequence, int, int]] = []
        """(sequence, prompt tokens in this step, tokens computed before)"""
        self.n_decodes = 0
        self.contexts: tuple[int, ...] = ()
        """Tokens the decodes attend to, summed, per attention window."""
        self.n_sampled = 0
        """Rows that yield a token."""
        self.n_tokens = 0
        self.finishing: list[Sequence] = []
        self.victims: list[Sequence] = []
        """In the order preempted."""
