"""Question 2: does it wait for the GPU or for the CPU?

Verdicts: `cpu` (the text names the process), `gpu`, `client` (the load generator), `neither` (nothing is full),
`unknown`. NVML's utilisation only says that some kernel was resident and is never evidence of a busy GPU.
"""

from __future__ import annotations

from optimizer.questions.answer import Answer, Change, Confidence, unknown
from optimizer.questions.bound import BUSY_MBU, BUSY_MFU
from optimizer.questions.physics import StepPhysics, decode_physics, window_mfu
from optimizer.questions.situation import CpuUse, Situation

TITLE = "GPU or CPU?"
FULL = 0.9
"""Of one core: Python runs one thread of a process at a time, so its busiest thread cannot go faster."""
FAR_ABOVE = 3.0
"""Times the card's own floor from which on a step mostly waits for the host (or, with TP, for the other cards)."""
STARVED = 0.7
"""Of a core: an engine that always has requests and gets less is kept from running."""
NAMES = {"api_server": "the API server", "engine_core": "EngineCore", "worker": "a worker"}


def gpu_or_cpu(s: Situation) -> Answer:
    if s.client_fault:
        return Answer(
            2, TITLE, "client", f"neither: the load generator is the bottleneck ({s.client_fault})", "high",
            (s.client_fault,), "a client that keeps up", advice=("give the client more processes or cores of its own",),
        )  # fmt: skip
    physics = decode_physics(s)
    full = [role for role in NAMES if role in s.cpu and _is_full(s, role, s.cpu[role])]
    if full:
        return _saturated(s, full, physics)
    if _is_starved(s):
        return _starved(s)
    if physics is not None and not _is_host(s):
        return _by_steps(s, physics)
    if _is_host(s) and "engine_core" in s.cpu:
        text = "the model runs on the CPU itself, and the front end keeps up: no GPU to wait for"
        return Answer(2, TITLE, "neither", text, "medium", _cpu_evidence(s), "an API server at a full core")
    return unknown(2, TITLE, "the processes' CPU use, or model, card and step times")


def _is_host(s: Situation) -> bool:
    return s.gpu is not None and s.gpu.is_cpu


def _is_full(s: Situation, role: str, use: CpuUse) -> bool:
    """On a host without GPU the engine's own cores compute the model: only the front end can be too slow for it."""
    if _is_host(s) and role != "api_server":
        return False
    return (use.busiest_thread if use.busiest_thread is not None else use.cores) >= FULL


def _is_starved(s: Situation) -> bool:
    """Always something to do, and less than a core to do it with."""
    engine = s.cpu.get("worker") or s.cpu.get("engine_core")
    is_busy = s.running is not None and s.running.mean >= 1
    return _is_host(s) and engine is not None and is_busy and engine.cores < STARVED


def _saturated(s: Situation, full: list[str], physics: StepPhysics | None) -> Answer:
    named = " and ".join(NAMES[role] for role in full)
    text = f"it waits for the CPU: {named} {'are' if len(full) > 1 else 'is'} at a full core"
    changes: tuple[Change, ...] = ()
    advice: list[str] = []
    if "api_server" in full:
        changes = (Change("api_server_count", 2, "the front end is at a full core", "TTFT and ITL fall under load"),)
    if "engine_core" in full:
        advice.append("EngineCore is one process: fewer sequences a step, async scheduling, or a second replica help")
    if "worker" in full:
        advice.append("a worker at a full core launches kernels: use CUDA graphs (no --enforce-eager), larger batches")
    is_gpu_idle = physics is not None and physics.mbu < BUSY_MBU and physics.mfu < BUSY_MFU
    confidence: Confidence = "high" if is_gpu_idle or len(full) > 1 or s.gpu is None or _is_host(s) else "medium"
    return Answer(
        2, TITLE, "cpu", text + "; more KV memory changes nothing", confidence, _cpu_evidence(s, physics),
        "the named process clearly below a core under the same load", changes, tuple(advice),
    )  # fmt: skip


def _starved(s: Situation) -> Answer:
    text = "the engine always has requests and gets less than a core: something else runs on its cores"
    advice = ("give the server cores of its own (cpuset, CPU limits), and move what else runs there",)
    return Answer(2, TITLE, "cpu", text, "high", _cpu_evidence(s), "the engine at its cores' full use", advice=advice)


def _by_steps(s: Situation, p: StepPhysics) -> Answer:
    mfu = window_mfu(s) or 0.0
    evidence = _cpu_evidence(s, p)
    if p.mbu >= BUSY_MBU or p.mfu >= BUSY_MFU or mfu >= BUSY_MFU:
        text = "it waits for the GPU: its steps take what the card needs"
        return Answer(2, TITLE, "gpu", text, "high" if s.cpu else "medium", evidence, "a process at a full core")
    if p.times_floor >= FAR_ABOVE:
        others = " or for the other GPUs (all-reduce)" if s.n_gpus > 1 else ""
        text = f"its steps take {p.times_floor:.1f} times what the card needs: they wait for the host{others}"
        changes = (
            (Change("enforce_eager", False, "eager mode launches every kernel from Python", "ITL falls"),)
            if s.config.get("enforce_eager")
            else ()
        )
        confidence: Confidence = "medium" if s.n_gpus > 1 or s.cpu else "high"
        return Answer(2, TITLE, "cpu", text, confidence, evidence, "steps near the card's own floor", changes)
    return Answer(2, TITLE, "neither", "nothing is full: neither card nor a core is at its limit", "medium", evidence)


def _cpu_evidence(s: Situation, physics: StepPhysics | None = None) -> tuple[str, ...]:
    told = [
        f"{role}: {use.cores:.2f} cores"
        + ("" if use.busiest_thread is None else f", its busiest thread {use.busiest_thread:.2f}")
        for role, use in s.cpu.items()
        if role != "client"
    ]
    if physics is not None:
        told.append(f"a step takes {1e3 * physics.step_s:.3g} ms, {physics.times_floor:.1f} times the card's floor")
    if s.kernel_resident_share is not None:
        told.append(
            f"a kernel was resident {s.kernel_resident_share:.0%} of the time (NVML; says nothing of how busy it was)"
        )
    return tuple(told)
