"""Question 2: does it wait for the GPU or for the CPU?

Verdicts: `cpu` (the text names the process), `gpu` (its own work), `gpu shared` (that of servers beside it, too),
`client` (the load generator), `neither` (nothing is full), `unknown`. NVML's utilisation only says that some kernel was
resident and is never evidence of a busy GPU; that none was is evidence of an idle one. An engine or a worker that waits
for the GPU spins on its core: a full core of theirs is evidence of a CPU limit only while the card is not busy.
"""

from __future__ import annotations

from optimizer.questions.answer import Answer, Change, Confidence, unknown
from optimizer.questions.health import waits
from optimizer.questions.physics import BUSY_MFU, StepPhysics, decode_physics, window_mfu
from optimizer.questions.processes import (
    IDLE_RESIDENT,
    NAMES,
    cpu_lines,
    fills_its_cores,
    full_roles,
    is_host,
    is_starved,
    is_throttled,
    named,
)
from optimizer.questions.situation import Situation
from search_spaces.vllm import API_SERVER_COUNT

TITLE = "GPU or CPU?"
FAR_ABOVE, FAR_ABOVE_COMPUTE = 3.0, 5.0
"""Times the card's own floor from which on a step mostly waits for the host (or, with TP, for the other cards). More
where arithmetic is the floor: kernels reach a smaller part of that peak."""
SURELY_ABOVE = 6.0
FRONT_END_SHARE, FRONT_END_S = 0.5, 0.25
"""Of the time to first token, neither in the queue nor in prefill: tokenising, rendering, HTTP."""
LAZY = 0.7
"""Of a core: a front end below it is not what makes requests wait."""

HINT = "read the CPU use of API server, EngineCore and workers (top -H): one at 100 % is what it waits for"


def gpu_or_cpu(s: Situation) -> Answer:
    if s.client_fault:
        return Answer(
            2, TITLE, "client", f"neither: the load generator is the bottleneck ({s.client_fault})", "high",
            (s.client_fault,), "a client that keeps up", advice=("give the client more processes or cores of its own",),
        )  # fmt: skip
    if is_starved(s):
        return _starved(s)
    physics = _possible_physics(s)
    full = full_roles(s)
    if full and not (_is_card_busy(s, physics) and "api_server" not in full):
        return _saturated(s, full, physics)
    if front_end_s(s) is not None:
        return _front_end(s)
    if physics is not None and not is_host(s):
        return _by_steps(s, physics, full)
    return _without_steps(s)


def front_end_s(s: Situation) -> float | None:
    """Mean time before the queue, where it is most of the time to first token; None if it is not, or not known."""
    if s.ttft_ms is None or s.ttft_ms.mean is None or s.queue_mean_s is None or s.prefill_mean_s is None:
        return None
    if waits(s):  # a server tells of queue and prefill when a request ends, of its first token when that comes
        return None
    use = s.cpu.get("api_server")
    before_s = s.ttft_ms.mean / 1e3 - s.queue_mean_s - s.prefill_mean_s
    is_most = before_s > max(FRONT_END_SHARE * s.ttft_ms.mean / 1e3, FRONT_END_S)
    is_lazy = use is not None and (use.busiest_thread or use.cores) < LAZY
    return before_s if is_most and not is_lazy else None


def _possible_physics(s: Situation) -> StepPhysics | None:
    physics = decode_physics(s)
    return physics if physics is not None and physics.is_possible else None


def _is_card_busy(s: Situation, physics: StepPhysics | None) -> bool:
    return (physics is not None and physics.is_card_busy) or (window_mfu(s) or 0.0) >= BUSY_MFU


def _saturated(s: Situation, full: list[str], physics: StepPhysics | None) -> Answer:
    text = f"it waits for the CPU: {named(full)} {'are' if len(full) > 1 else 'is'} at a full core"
    changes, advice = _relief(s, full)
    return Answer(
        2, TITLE, "cpu", text + "; more KV memory changes nothing", _sureness(s, full, physics),
        _evidence(s, physics), "the named process clearly below a core under the same load", changes, tuple(advice),
    )  # fmt: skip


def _sureness(s: Situation, full: list[str], physics: StepPhysics | None) -> Confidence:
    """An engine at a full core may only spin: sure where the GPU is seen to wait, unsure where nobody saw it."""
    if is_host(s):
        return "high"
    if physics is not None:
        return "medium" if physics.is_card_busy else "high"
    if s.kernel_resident_share is not None and s.kernel_resident_share < IDLE_RESIDENT:
        return "high"
    return "medium" if "api_server" in full or s.kernel_resident_share is None else "low"


def _relief(s: Situation, full: list[str]) -> tuple[tuple[Change, ...], list[str]]:
    changes: tuple[Change, ...] = ()
    advice: list[str] = []
    if "api_server" in full:
        more = _more_front_ends(s)
        changes = (more,) if more else ()
        advice += [] if more else ["no more front ends are in the space: a second replica behind a router helps"]
    if "engine_core" in full:
        advice.append("EngineCore is one process: fewer sequences a step, async scheduling, or a second replica help")
    if "worker" in full:
        advice.append("a worker at a full core launches kernels: use CUDA graphs (no --enforce-eager), larger batches")
    return changes, advice


def _more_front_ends(s: Situation) -> Change | None:
    now = max(s.whole("api_server_count") or 1, s.cpu["api_server"].n_processes if "api_server" in s.cpu else 1)
    more = [n for n in API_SERVER_COUNT.choices if isinstance(n, int) and n > now]
    why = "the front end is at a full core"
    return Change("api_server_count", min(more), why, "TTFT and ITL fall under load") if more else None


def _front_end(s: Situation) -> Answer:
    """The clock of TTFT starts before the text is tokenised; queue and prefill are the engine's own."""
    before_s, ttft_ms = front_end_s(s) or 0.0, (s.ttft_ms.mean if s.ttft_ms is not None else None) or 0.0
    text = f"it waits for the CPU: {before_s:.2g} s of the time to first token pass in the front end (the API server:"
    text += " tokenising, rendering, HTTP) before the engine sees the request"
    more = _more_front_ends(s)
    advice = ("send token ids, or shorten what is tokenised; a slow network or client looks the same",)
    return Answer(
        2, TITLE, "cpu", text, "medium" if "api_server" in s.cpu else "low",
        (f"TTFT {ttft_ms:.0f} ms on average, {s.queue_mean_s:.2g} s of it in the queue,"
         f" {s.prefill_mean_s:.2g} s in prefill: the rest is the front end's", *_evidence(s)),
        "an API server far below a core under the same load", (more,) if more else (), advice,
    )  # fmt: skip


def _starved(s: Situation) -> Answer:
    text = "it waits for the CPU: the engine has requests and does not get its core, because something else runs on it"
    advice = ("give the server cores of its own (cpuset, CPU requests), and move what else runs there",)
    if is_throttled(s):
        text = "it waits for the CPU: its container's CPU limit stops the engine again and again"
        advice = ("raise or remove the container's CPU limit; a CPU request does not throttle",)
    elif fills_its_cores(s):
        text = f"it waits for the CPU: its own processes fill the {s.n_cores} cores that it may use, and wait for them"
        advice = ("give it more cores; a client, a proxy or a second server on the same cores takes them away too",)
    return Answer(2, TITLE, "cpu", text, "high", _evidence(s), "the engine with a core of its own", advice=advice)


def _by_steps(s: Situation, p: StepPhysics, full: list[str]) -> Answer:
    evidence = _evidence(s, p)
    if _is_card_busy(s, p):
        text = "it waits for the GPU: its steps take what the card needs"
        text += f"; {named(full)} at a full core spins while it waits" if full else ""
        confidence: Confidence = "high" if s.cpu else "medium"
        would = f"steps of more than {_far_above(p):g} times the card's floor (now {p.times_floor:.1f})"
        return Answer(2, TITLE, "gpu", text, confidence, evidence, would)
    if not s.is_alone:
        return _shared(s, p, evidence)
    if p.times_floor >= _far_above(p):
        return _slow_steps(s, p, evidence)
    text = "nothing is full: neither card nor a core is at its limit"
    return Answer(2, TITLE, "neither", text, "medium", evidence, "a process at a full core, or steps at the floor")


def _far_above(p: StepPhysics) -> float:
    return FAR_ABOVE if p.memory_s >= p.compute_s else FAR_ABOVE_COMPUTE


def _shared(s: Situation, p: StepPhysics, evidence: tuple[str, ...]) -> Answer:
    """No process is full: what its own work does not explain is the neighbours', until somebody sees a slow host."""
    text = f"it waits for the GPU, which the servers beside it have too: its steps take {p.times_floor:.1f} times what"
    text += " it needs of the card"
    advice = ("give the card to it alone, or ask less of the servers beside it, where it must be faster",)
    would = "steps that stay as long with the card to itself, or a process at a full core"
    return Answer(2, TITLE, "gpu shared", text, "medium" if s.cpu else "low", evidence, would, advice=advice)


def _slow_steps(s: Situation, p: StepPhysics, evidence: tuple[str, ...]) -> Answer:
    """Kernels of experts are small: a model of many is far above its floor on the GPU itself."""
    others = " or for the other GPUs (all-reduce)" if s.n_gpus > 1 else ""
    text = f"its steps take {p.times_floor:.1f} times what the card needs: they wait for the host{others}"
    changes = (
        (Change("enforce_eager", False, "eager mode launches every kernel from Python", "ITL falls"),)
        if s.config.get("enforce_eager")
        else ()
    )
    is_moe = s.model is not None and s.model.n_experts > 0
    is_sure = p.times_floor >= SURELY_ABOVE and s.n_gpus == 1 and not s.cpu and not is_moe
    confidence: Confidence = "high" if is_sure else "low" if is_moe and p.times_floor < SURELY_ABOVE else "medium"
    return Answer(
        2,
        TITLE,
        "cpu",
        text,
        confidence,
        evidence,
        f"steps below {_far_above(p):g} times the card's floor (now {p.times_floor:.1f})",
        changes,
    )


def _without_steps(s: Situation) -> Answer:
    """By what is left: the card's arithmetic over the window, kernels that were absent, processes that idle."""
    evidence, full = _evidence(s), full_roles(s)
    if not is_host(s) and (window_mfu(s) or 0.0) >= BUSY_MFU:
        text = f"it waits for the GPU: MFU {window_mfu(s):.0%} over the whole window"
        return Answer(2, TITLE, "gpu", text, "medium", (text, *evidence), "a process at a full core")
    if is_host(s) and "engine_core" in s.cpu:
        text = "the model runs on the CPU itself, and the front end keeps up: no GPU to wait for"
        return Answer(2, TITLE, "neither", text, "medium", evidence, "an API server at a full core")
    if s.is_busy and s.kernel_resident_share is not None and s.kernel_resident_share < IDLE_RESIDENT:
        text = f"it waits for the CPU: requests ran all the time, and no kernel {1 - s.kernel_resident_share:.0%} of it"
        return Answer(2, TITLE, "cpu", text, "medium", evidence, "the processes' own CPU use", advice=(HINT,))
    if s.cpu and not full and set(s.cpu) & set(NAMES):
        text = "no process is near a full core; whether the card is, its step times would show"
        return Answer(2, TITLE, "neither", text, "low", evidence, "model, card and step times")
    return unknown(2, TITLE, "the processes' CPU use, or model, card and step times")


def _evidence(s: Situation, physics: StepPhysics | None = None) -> tuple[str, ...]:
    told = cpu_lines(s)
    if physics is not None:
        told.append(f"a step takes {1e3 * physics.step_s:.3g} ms, {physics.times_floor:.1f} times the card's floor")
    if s.kernel_resident_share is not None:
        told.append(
            f"a kernel was resident {s.kernel_resident_share:.0%} of the time (NVML; says nothing of how busy it was)"
        )
    return tuple(told)
