"""Question 1: is it compute or memory bandwidth that the GPU has too little of, in prefill and in decode?

Verdicts: `bandwidth`, `compute`, `neither` (the step waits for something else: see question 2), `shared` (it waits for
the servers beside it on its card), `unknown`; decode first, then prefill, where both are known: `decode bandwidth,
prefill compute`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.questions.answer import Answer, Confidence, unknown
from optimizer.questions.figure import figure
from optimizer.questions.physics import BUSY_MBU, BUSY_MFU, StepPhysics, decode_physics, ridge_tokens, window_mfu
from optimizer.questions.processes import limiting_roles, named
from optimizer.questions.situation import Situation

TITLE = "compute or memory bandwidth?"
FLAT = 0.08
"""Of the best throughput: what lies no further below is as good, two runs of one setting differ by nearly as much."""
LEAST_SPAN = 1.3
"""Of concurrency that a flat part must cover: over less, even a batch that grows freely gains hardly more than FLAT."""
MOST_POINTS = 6
"""Shown of a response."""


@dataclass(frozen=True, slots=True)
class Point:
    """One load that was measured."""

    concurrency: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Response:
    """How throughput answered to more requests at once."""

    saturates_at: float | None
    """Concurrency from which on it is flat; None: it still grew at the highest seen."""
    text: str


def batch_response(points: Sequence[Point]) -> Response | None:
    """None for fewer than two concurrencies."""
    known = sorted({p.concurrency: p for p in points if p.concurrency > 0 and p.tokens_per_s > 0}.values(), key=_by)
    if len(known) < 2:
        return None
    best = max(p.tokens_per_s for p in known)
    first = next(p for p in known if p.tokens_per_s >= (1 - FLAT) * best)
    is_flat = known[-1].concurrency >= LEAST_SPAN * first.concurrency or _is_falling(known, first)
    told = ", ".join(f"{figure(p.tokens_per_s)} tok/s at {p.concurrency:.3g}" for p in _shown(known, first))
    return Response(first.concurrency if is_flat else None, told)


def _by(point: Point) -> float:
    return point.concurrency


def _is_falling(known: Sequence[Point], first: Point) -> bool:
    return known[-1].tokens_per_s < (1 - FLAT) * first.tokens_per_s


def _shown(known: Sequence[Point], first: Point) -> Sequence[Point]:
    """Spread evenly, with both ends and where the flat part begins."""
    if len(known) <= MOST_POINTS:
        return known
    last, begin = len(known) - 1, known.index(first)
    at = {round(i * last / (MOST_POINTS - 1)) for i in range(MOST_POINTS)}
    if begin not in at:
        at = at - {min(at - {0, last}, key=lambda i: abs(i - begin))} | {begin}
    return [known[i] for i in sorted(at)]


def compute_or_bandwidth(s: Situation, points: Sequence[Point] = ()) -> Answer:
    """`points`: other loads of the same configuration."""
    physics, response = decode_physics(s), batch_response(points)
    if physics is not None and not physics.is_possible:
        return _impossible(s, physics)
    if physics is not None:
        return _by_physics(s, physics, response)
    if response is not None:
        return _by_response(s, response)
    if s.output_tokens_per_s and window_mfu(s) is not None and _prefill(s)[0]:
        return _by_prefill(s)
    if s.gpu is not None and s.gpu.is_cpu:
        return unknown(1, TITLE, "throughput at two concurrencies (a CPU's peaks are not known, so it has no roofline)")
    return unknown(1, TITLE, "the model, the card and step times, or throughput at two concurrencies")


def _by_physics(s: Situation, p: StepPhysics, response: Response | None) -> Answer:
    decode = _decode_verdict(s, p)
    prefill, prefill_evidence = _prefill(s)
    evidence = [
        f"decode: {p.n_sequences:.3g} sequences{_riding(p)} a step, {1e3 * p.step_s:.3g} ms; the card needs"
        f" {1e3 * p.memory_s:.3g} ms to read weights and KV ({p.kv_share:.0%} KV) and"
        f" {1e3 * p.compute_s:.3g} ms to compute: MBU {p.mbu:.0%}, MFU {p.mfu:.0%}",
        *prefill_evidence,
        *([f"batch size response: {response.text}"] if response else []),
    ]
    texts = {
        "bandwidth": "decode is bound by memory bandwidth: more sequences at once ride along until compute is full",
        "compute": "decode is bound by compute: more sequences at once only make each step longer",
        "neither": f"decode steps take {p.times_floor:.1f} times what the card needs: "
        + ("prefills have it the rest of the time" if _is_full_of_prefill(s) else "the GPU is not the limit"),
        "shared": f"decode steps take {p.times_floor:.1f} times what this server needs of the card: the servers beside"
        " it have the card the rest of the time",
    }
    evidence += [s.itl_note] if s.itl_note else []
    confidence: Confidence = "high" if p.mbu >= 0.6 or p.mfu >= 0.4 or p.times_floor >= 6 else "medium"
    if not s.gpu or not s.gpu.is_calibrated:
        confidence = "medium" if confidence == "high" else "low"
    verdict = f"decode {decode}" + (f", prefill {prefill}" if prefill else "")
    text = texts[decode] + ("" if not prefill else f"; prefill is bound by {_words(prefill)}")
    return Answer(1, TITLE, verdict, text, confidence, tuple(evidence), _would(p, decode))


def _would(p: StepPhysics, decode: str) -> str:
    """In figures, beside those of now."""
    floor_ms, now = 1e3 * max(p.memory_s, p.compute_s), p.n_sequences + p.n_prefill_tokens
    if decode == "neither":
        return f"a decode step near {floor_ms:.2g} ms would make the GPU the limit (now {1e3 * p.step_s:.3g} ms)"
    if decode == "shared":
        return f"steps that stay as long with the card to itself (it needs {floor_ms:.2g} ms)"
    if decode == "compute":
        return f"steps of fewer than {p.ridge_tokens:.0f} tokens (now {now:.0f}), or an MFU below {BUSY_MFU:.0%}"
    if now >= p.ridge_tokens:
        return f"less KV cache to read: it is {p.kv_share:.0%} of the bytes, and the linear layers are full already"
    return (
        f"more than {p.ridge_tokens:.0f} tokens a step (now {now:.0f}), which fill the arithmetic of its linear layers"
    )


def _riding(p: StepPhysics) -> str:
    return f" and {p.n_prefill_tokens:.0f} prompt tokens" if p.n_prefill_tokens >= 1 else ""


def _impossible(s: Situation, p: StepPhysics) -> Answer:
    """A figure that no card reaches proves that something was misread, not that the card is full."""
    missing = (
        f"a step of {1e3 * p.step_s:.3g} ms is shorter than this card could make it"
        f" ({1e3 * max(p.memory_s, p.compute_s):.3g} ms): several tokens a message, or another card, model or batch"
    )
    evidence = (s.itl_note,) if s.itl_note else ()
    return Answer(
        1, TITLE, "unknown", f"cannot be said: {missing}", "unknown", evidence, "needs the gaps between messages"
    )


def _by_prefill(s: Situation) -> Answer:
    """Nothing decodes: answers of one token, as for classification and scoring."""
    verdict, evidence = _prefill(s)
    is_full = (window_mfu(s) or 0.0) >= BUSY_MFU
    text = f"prefill is bound by {_words(verdict)}" + ("" if is_full else ", and the card is not full")
    would = f"prefill steps of {'fewer' if verdict == 'compute' else 'more'} tokens than the ridge's"
    return Answer(1, TITLE, f"prefill {verdict}", text, "medium" if is_full else "low", tuple(evidence), would)


def _words(verdict: str) -> str:
    return "memory bandwidth" if verdict == "bandwidth" else verdict


def _is_full_of_prefill(s: Situation) -> bool:
    return (window_mfu(s) or 0.0) >= BUSY_MFU


def _decode_verdict(s: Situation, p: StepPhysics) -> str:
    """By the larger of the two, where the card is busy with it, else by the other."""
    is_memory, is_compute = p.mbu >= BUSY_MBU, p.mfu >= BUSY_MFU
    if is_memory and (p.memory_s >= p.compute_s or not is_compute):
        return "bandwidth"
    return "compute" if is_compute else "neither" if s.is_alone else "shared"


def _prefill(s: Situation) -> tuple[str, list[str]]:
    """By how many tokens a prefill step has against the ridge; the window's MFU says whether the card was full."""
    if s.model is None or s.gpu is None or s.prompts is None:
        return "", []
    budget = s.whole("max_num_batched_tokens")
    computed = s.prompts.mean * (1.0 - (s.cached_share or 0.0))
    tokens = min(computed, budget) if budget else computed
    ridge = ridge_tokens(s.model, s.gpu)
    mfu = window_mfu(s)
    used = "" if mfu is None else f"; MFU over the whole window {mfu:.0%}"
    evidence = f"prefill: about {tokens:.0f} tokens a step, the ridge is at {ridge:.0f}{used}"
    return ("compute" if tokens >= ridge else "bandwidth"), [evidence]


def _by_response(s: Situation, response: Response) -> Answer:
    """Without the card's figures: growing with the batch is what bandwidth-bound decode does, flat what full compute
    does; a CPU that is full looks the same, which question 2 has to rule out."""
    at, full = response.saturates_at, limiting_roles(s)
    if at is not None and full:
        text = f"flat from about {at:.3g} requests at once: {named(full)} has no more of its core (see question 2)"
        return Answer(1, TITLE, "neither", text, "medium", (response.text,), "a flat response with idle processes")
    if at is None:
        text = "throughput still grows with the batch: decode is bound by memory bandwidth"
        return Answer(1, TITLE, "decode bandwidth", text, "medium", (response.text,), "a flat response")
    text = (
        f"bound by memory bandwidth up to about {at:.3g} requests at once, by compute above: there, more requests only"
        " wait, and the scheduler's knobs move nothing"
    )
    advice = (
        f"cap admission near {at:.3g} requests at once, or add replicas",
        "spend no trials on max_num_seqs and max_num_batched_tokens for this load: they move nothing here",
    )
    would = "another cause of the flat part (a saturated CPU, a slow client): see question 2"
    return Answer(
        1, TITLE, f"bandwidth up to {at:.3g}, compute above", text, "medium", (response.text,), would, advice=advice
    )
