"""vLLM 0.32's V1 scheduler (v1/core/sched/scheduler.py, async_scheduler.py), step by step, full attention, fcfs.

The same decisions in the same order; what differs is bookkeeping: decoding sequences advance together (`decode_set`).
A step in which blocks or token budget could run out is walked request by request, as vLLM does; `is_stepwise` forces
that walk for every step, which tests use to hold the short cut to it.

Refused: speculative decoding, priorities, LoRA, KV connectors, data-parallel throttling, sliding-window block release.
"""

from __future__ import annotations

from collections import deque

from optimizer.engines.simulator.budgets import Budgets, Step
from optimizer.engines.simulator.decode_set import DecodeSet
from optimizer.engines.simulator.kv_cache import NO_HIT, BlockPool
from optimizer.engines.simulator.sequence import Sequence, State


class Scheduler:
    """Running and waiting requests of one engine. `schedule` and `update` alternate as in vLLM's engine core."""

    def __init__(
        self, budgets: Budgets, n_blocks: int, windows: tuple[int, ...] = (0,), is_stepwise: bool = False
    ) -> None:
        self.budgets = budgets
        self.pool = BlockPool(n_blocks)
        self.decodes = DecodeSet(budgets.block_size, windows)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}
        """In admission order; a preemption takes the last."""
        self.n_steps = 0
        """Non-empty ones."""
        self.full_s: float | None = None
        """First time a waiting request was refused a seat or blocks, or blocks ran out under a running one."""
        self.preemption_times_s: list[float] = []
        self._prefilling: dict[Sequence, None] = {}
        self._is_head_blocked = False
        """The head of the waiting queue was refused blocks, and nothing was freed since."""
        self._n_leaving = 0
        self._n_admitted = 0
        self._is_stepwise = is_stepwise
        self._watermark_blocks = int(budgets.watermark * n_blocks)

    @property
    def has_requests(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def n_unfinished(self) -> int:
        return len(self.running) + len(self.waiting)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        if self.budgets.is_admission_easier_in_company:
            self._is_head_blocked = False

    def change_budgets(self, budgets: Budgets) -> None:
        """From the next step on, as an engine that is tuned while it runs."""
        self.budgets = budgets
        self._is_head_blocked = False

    def schedule(self, now_s: float) -> Step:
        """Decide one step. Token times are kept as step numbers; empty steps take none."""
        step = Step(self.n_steps)
        threshold = self.budgets.threshold(self.n_unfinished)
        left = self._schedule_running(step, threshold, now_s)
        if not step.victims:
            left = self._admit(step, left, threshold, now_s)
        step.n_tokens = self.budgets.step_tokens - left
        if step.n_tokens:
            self.n_steps += 1
        self._finish_prefills(step)
        return step

    def update(self, step: Step) -> list[Sequence]:
        """The step's output is known: sequences that got their last token leave. Returns them."""
        if not step.finishing:
            return step.finishing
        step.finishing.sort(key=_admission)
        for sequence in step.finishing:
            if sequence.state is State.WAITING:  # preempted while its last token was in flight
                self.waiting.remove(sequence)
            else:
                self._n_leaving -= 1
                del self.running[sequence]
                computed = sequence.prompt + sequence.limit - 1
                self._release(sequence, computed, computed)
            sequence.state = State.DONE
        self._is_head_blocked = False
        return step.finishing

    # ---- running requests -----------------------------------------------------------------------------------------

    def _schedule_running(self, step: Step, threshold: int, now_s: float) -> int:
        """Everything running gets its tokens, if budget and blocks are certain to suffice; else walk."""
        n_decodes = len(self.decodes)
        n_blocks = self.decodes.blocks_needed()
        left = self.budgets.step_tokens - n_decodes
        if left < 0 or self._is_stepwise:
            return self._walk(step, threshold, now_s)
        chunks: list[tuple[Sequence, int, int]] = []
        for sequence in self._prefilling:
            wanted = self._wanted(sequence, threshold)
            if wanted > left and sequence.order < self.decodes.last_order:
                return self._walk(step, threshold, now_s)
            chunk = min(wanted, left)
            if not chunk:
                break
            left -= chunk
            chunks.append((sequence, chunk, sequence.computed))
            n_blocks += self._blocks_for(sequence, chunk)
        if n_blocks > self.pool.n_free:
            return self._walk(step, threshold, now_s)
        self.pool.take(n_blocks)
        for sequence, chunk, _ in chunks:
            self._compute(sequence, chunk)
        step.chunks = chunks
        self._advance_decodes(step, n_decodes)
        return left

    def _walk(self, step: Step, threshold: int, now_s: float) -> int:
        """vLLM's first loop as written: in list order, preempting the last running request when blocks run out."""
        left = self.budgets.step_tokens
        n_decodes = 0
        skipped: list[Sequence] = []
        for sequence in list(self.running):
            if sequence not in self.running or sequence.state is State.LEAVING:
                continue
            is_decode = sequence.state is State.DECODE
            if not left:
                if is_decode:
                    skipped.append(sequence)
                continue
            chunk = 1 if is_decode else min(self._wanted(sequence, threshold), left)
            needed = int(self.decodes.needs_block(sequence)) if is_decode else self._blocks_for(sequence, chunk)
            if not self._make_room(sequence, needed, step, now_s):
                break
            self.pool.take(needed)
            left -= chunk
            if is_decode:
                n_decodes += 1
            else:
                step.chunks.append((sequence, chunk, sequence.computed))
                self._compute(sequence, chunk)
        self._pause(skipped, step)
        self._advance_decodes(step, n_decodes)
        self._resume(skipped, step)
        return left

    def _make_room(self, sequence: Sequence, needed: int, step: Step, now_s: float) -> bool:
        """Preempt from the end until `needed` blocks are free; False if `sequence` itself had to go."""
        while needed > self.pool.n_free:
            victim, _ = self.running.popitem()
            self._preempt(victim, step, now_s)
            if victim is sequence:
                return False
        return True

    def _advance_decodes(self, step: Step, n_decodes: int) -> None:
        """One token for every decoding sequence; those that got their last one start to leave."""
        if not n_decodes:
            self.decodes.jump(1)
            return
        step.n_decodes = n_decodes
        step.contexts = self.decodes.contexts.at(self.decodes.tick + 1)
        endings = self.decodes.advance()
        for sequence in endings:
            self._leave(sequence, step)

    def _pause(self, skipped: list[Sequence], step: Step) -> None:
        """The token budget ended before these decoding sequences: they stay where they are."""
        for sequence in skipped:
            self.decodes.remove(sequence)
            sequence.close_range(step.index)

    def _resume(self, skipped: list[Sequence], step: Step) -> None:
        for sequence in skipped:
            sequence.skipped_step = step.index
            self.decodes.add(sequence, step.index + 1)

    # ---- waiting requests -----------------------------------------------------------------------------------------

    def _admit(self, step: Step, left: int, threshold: int, now_s: float) -> int:
        waiting, seats = self.waiting, self.budgets.seats
        self._is_head_blocked = False
        while left and waiting and len(self.running) < seats:
            chunk = self._try_admit(waiting[0], left, threshold, now_s, step)
            if chunk is None:
                break
            left -= chunk
        if waiting and self.full_s is None and self.is_head_waiting:
            self.full_s = now_s
        return left

    def _try_admit(self, sequence: Sequence, left: int, threshold: int, now_s: float, step: Step) -> int | None:
        """Admit the head of the queue; returns its chunk, or None when it must wait (nothing behind it is tried)."""
        budgets, pool = self.budgets, self.pool
        hit = NO_HIT
        if budgets.is_prefix_cached and (len(sequence.prefix) or sequence.n_preemptions):
            most = (sequence.target - 1) // budgets.block_size  # the last token is always recomputed
            hit = pool.longest_hit(sequence.prefix, sequence.index, most)
        n_cached = hit.n_blocks * budgets.block_size
        chunk = sequence.target - n_cached
        if 0 < threshold < chunk:
            chunk = threshold
        if not budgets.is_prefill_chunked and chunk > left:
            return None
        chunk = min(chunk, left)
        needed = budgets.blocks(n_cached + chunk)
        must_fit = budgets.blocks(sequence.target) if budgets.reserves_full_prompt else needed
        reserve = self._watermark_blocks if self.running else 0
        if must_fit - hit.n_blocks + hit.n_free + reserve > pool.n_free:
            self._is_head_blocked = True
            return None
        held = pool.claim(hit, sequence.index)
        pool.take(needed - hit.n_blocks)
        self.waiting.popleft()
        self._seat(sequence, n_cached, now_s)
        sequence.held, sequence.n_held = held, hit.n_shared
        step.chunks.append((sequence, chunk, n_cached))
        self._compute(sequence, chunk)
        return chunk

    def _seat(self, sequence: Sequence, n_cached: int, now_s: float) -> None:
        if sequence.first_step_s is None:
            sequence.first_step_s = now_s
            sequence.cached_tokens = n_cached
        else:
            sequence.recomputed -= n_cached
        sequence.order = self._n_admitted
        self._n_admitted += 1
        sequence.computed = n_cached
        sequence.state = State.PREFILL
        self.running[sequence] = None
        self._prefilling[sequence] = None

    # ---- transitions ----------------------------------------------------------------------------------------------

    def _wanted(self, sequence: Sequence, threshold: int) -> int:
        wanted = sequence.target - sequence.computed
        return threshold if 0 < threshold < wanted else wanted

    def _blocks_for(self, sequence: Sequence, chunk: int) -> int:
        blocks = self.budgets.blocks
        return blocks(sequence.computed + chunk) - blocks(sequence.computed)

    def _compute(self, sequence: Sequence, chunk: int) -> None:
        """Blocks are published when scheduled, before they are computed: requests of the same step can hit them."""
        sequence.computed += chunk
        if self.budgets.is_prefix_cached and sequence.n_held < len(sequence.prefix):
            n_full = sequence.computed // self.budgets.block_size
            sequence.n_held = self.pool.register(sequence.prefix, sequence.held, sequence.n_held, n_full)

    def _finish_prefills(self, step: Step) -> None:
        """Sequences whose last chunk was scheduled yield a token in this step and decode from the next."""
        step.n_sampled = step.n_decodes
        for sequence, _, _ in step.chunks:
            if sequence.computed < sequence.target:
                continue
            step.n_sampled += 1
            del self._prefilling[sequence]
            sequence.issued += 1
            if sequence.issued >= sequence.limit:
                sequence.range_start = step.index
                self._leave(sequence, step)
            else:
                sequence.state = State.DECODE
                self.decodes.add(sequence, step.index)

    def _leave(self, sequence: Sequence, step: Step) -> None:
        sequence.state = State.LEAVING
        sequence.issued = sequence.limit
        sequence.close_range(step.index + 1)
        self._n_leaving += 1
        step.finishing.append(sequence)

    def _preempt(self, sequence: Sequence, step: Step, now_s: float) -> None:
        """Free everything and go back to the head of the queue; outputs (also one in flight) are kept."""
        if sequence.state is State.PREFILL:
            del self._prefilling[sequence]
            published = sequence.computed
        else:
            if sequence.state is State.DECODE:
                self.decodes.remove(sequence)
                sequence.close_range(step.index)
            else:
                self._n_leaving -= 1
                sequence.computed = sequence.prompt + sequence.limit - 1
            # async: the block that the token in flight completes is published only when the token is known
            # (a sequence passed over in one of the last two steps fed a token that was known when it was scheduled)
            is_in_flight = self.budgets.is_async and sequence.skipped_step not in (step.index - 1, step.index - 2)
            published = max(sequence.computed - is_in_flight, min(sequence.computed, sequence.target))
        self._release(sequence, sequence.computed, published)
        sequence.recomputed += sequence.computed
        sequence.target = sequence.prompt + sequence.issued
        sequence.computed = 0
        sequence.state = State.WAITING
        sequence.n_preemptions += 1
        self.waiting.appendleft(sequence)
        self.preemption_times_s.append(now_s)
        self.full_s = now_s if self.full_s is None else self.full_s
        self._is_head_blocked = False
        step.victims.append(sequence)

    def _release(self, sequence: Sequence, computed: int, published: int) -> None:
        n_hashed = published // self.budgets.block_size if self.budgets.is_prefix_cached else 0
        self.pool.release(sequence.index, self.budgets.blocks(computed), n_hashed, sequence.held, sequence.n_held)
        sequence.held, sequence.n_held = [], 0

    # ---- uniform decode -------------------------------------------------------------------------------------------

    @property
    def is_head_waiting(self) -> bool:
        """The head of the queue cannot be admitted before something leaves."""
        return self._is_head_blocked or len(self.running) >= self.budgets.seats

    @property
    def ignores_arrivals(self) -> bool:
        """A request more changes nothing in steps that `n_coastable` counts: it would wait behind the head."""
        if not self.waiting:
            return False
        return not self.budgets.is_admission_easier_in_company or len(self.running) >= self.budgets.seats

    def n_coastable(self) -> int:
        """How many of the next steps are certain to be `one token for each decoding sequence and nothing else`,
        arrivals aside: no last token, no admission, no shortage of blocks, no window filling up."""
        if self._prefilling or self._n_leaving or self._is_stepwise or len(self.decodes) > self.budgets.step_tokens:
            return 0
        if self.waiting and not self.is_head_waiting:
            return 0
        return self.decodes.n_affordable(self.decodes.n_uniform(), self.pool.n_free)

    def coast(self, n_steps: int) -> None:
        """Account for `n_steps` (at most `n_coastable()`) uniform decode steps at once."""
        self.pool.take(self.decodes.blocks_needed(n_steps))
        self.decodes.jump(n_steps)
        self.n_steps += n_steps


def _admission(sequence: Sequence) -> int:
    return sequence.order
