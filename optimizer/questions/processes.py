"""The server's own processes: which of them has no more of its core."""

from __future__ import annotations

from optimizer.questions.physics import decode_physics
from optimizer.questions.situation import CpuUse, Situation

FULL = 0.9
"""Of one core: Python runs one thread of a process at a time, so its busiest thread cannot go faster."""
STARVED = 0.7
"""Of a core, and of all its cores: an engine that always has requests, computes on the CPU and gets less is kept from
running."""
OFTEN = 0.5
"""Share of the readings with a request running, from which on waiting for a core is what requests wait for."""
FILLED = 0.85
"""Of all its cores."""
DELAYED, THROTTLED = 0.2, 0.1
"""Share of the time that an engine's thread waits for a core, or that its container is stopped, from which on that is
what requests wait for: a step of 20 ms then takes 25."""
IDLE_RESIDENT = 0.7
"""Share of the time below which no kernel was resident while requests ran all the time: the GPU waited."""
NAMES = {"api_server": "the API server", "engine_core": "EngineCore", "worker": "a worker"}


def full_roles(s: Situation) -> list[str]:
    """Roles at a full core, the front end first."""
    return [role for role in NAMES if role in s.cpu and _is_full(s, role, s.cpu[role])]


def limiting_roles(s: Situation) -> list[str]:
    """Of these, those that make requests wait: an engine or a worker that waits for a busy GPU spins on its core."""
    full = full_roles(s)
    if not full or "api_server" in full or is_host(s):
        return full
    physics = decode_physics(s)
    if physics is not None and physics.is_possible:
        return [] if physics.is_card_busy else full
    return [] if s.kernel_resident_share is not None and s.kernel_resident_share >= IDLE_RESIDENT else full


def named(roles: list[str]) -> str:
    return " and ".join(NAMES[role] for role in roles)


def is_host(s: Situation) -> bool:
    """Whether the model itself runs on the CPU."""
    return s.gpu is not None and s.gpu.is_cpu


def is_starved(s: Situation) -> bool:
    """Something to do, and no core to do it with: by the kernel's own clocks where they can be read, else, on a CPU, by
    what the engine used while it always had requests."""
    if s.running is None or not s.running.mean > 0:
        return False
    if is_throttled(s):
        return True
    delayed = engine_delay(s)
    if delayed is not None:
        return delayed > DELAYED and (s.running.above_zero is None or s.running.above_zero >= OFTEN)
    engine = s.cpu.get("worker") or s.cpu.get("engine_core")
    if engine is None or not is_host(s) or not s.is_busy or _busiest(engine) >= STARVED:
        return False
    return _used(s) < STARVED * (s.n_cores or 1)


def is_throttled(s: Situation) -> bool:
    return s.cpu_wait is not None and (s.cpu_wait.throttled or 0.0) > THROTTLED


def engine_delay(s: Situation) -> float | None:
    """Of EngineCore or a worker, whichever waits longer for its core: each waits for the other."""
    told = [s.cpu[role].delayed for role in ("engine_core", "worker") if role in s.cpu]
    return max((x for x in told if x is not None), default=None)


def fills_its_cores(s: Situation) -> bool:
    """Whether the server's own processes use up the cores that it may run on."""
    return s.n_cores is not None and _used(s) >= FILLED * s.n_cores


def _used(s: Situation) -> float:
    return sum(use.cores * use.n_processes for role, use in s.cpu.items() if role != "client")


def _busiest(use: CpuUse) -> float:
    return use.busiest_thread if use.busiest_thread is not None else use.cores


def _is_full(s: Situation, role: str, use: CpuUse) -> bool:
    """On a host without GPU the engine's own cores compute the model: only the front end can be too slow for it."""
    if is_host(s) and role != "api_server":
        return False
    return _busiest(use) >= FULL


def cpu_lines(s: Situation) -> list[str]:
    """One line a role, the load generator's left out; and how long they waited for a core."""
    return _wait_lines(s) + [
        f"{role}: {use.cores:.2f} cores"
        + ("" if use.busiest_thread is None else f", its busiest thread {use.busiest_thread:.2f}")
        for role, use in s.cpu.items()
        if role != "client"
    ]


def _wait_lines(s: Situation) -> list[str]:
    told, delayed = [], engine_delay(s)
    if delayed is not None:
        told.append(f"the engine was ready to run and had no core {delayed:.0%} of the time (schedstat)")
    if s.cpu_wait is not None and s.cpu_wait.throttled:
        told.append(f"its container's CPU limit stopped it {s.cpu_wait.throttled:.0%} of the time (cgroup cpu.stat)")
    if s.cpu_wait is not None and s.cpu_wait.machine is not None:
        told.append(
            f"some task of this machine waited for a core {s.cpu_wait.machine:.0%} of the time (/proc/pressure)"
        )
    return told
