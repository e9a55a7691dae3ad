"""The server's own processes: which of them has no more of its core."""

from __future__ import annotations

from optimizer.questions.physics import decode_physics
from optimizer.questions.situation import CpuUse, Situation

FULL = 0.9
"""Of one core: Python runs one thread of a process at a time, so its busiest thread cannot go faster."""
STARVED = 0.7
"""Of a core: an engine that always has requests and gets less is kept from running."""
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
    """Always something to do, and less than a core to do it with."""
    engine = s.cpu.get("worker") or s.cpu.get("engine_core")
    return is_host(s) and engine is not None and s.is_busy and engine.cores < STARVED


def _is_full(s: Situation, role: str, use: CpuUse) -> bool:
    """On a host without GPU the engine's own cores compute the model: only the front end can be too slow for it."""
    if is_host(s) and role != "api_server":
        return False
    return (use.busiest_thread if use.busiest_thread is not None else use.cores) >= FULL


def cpu_lines(s: Situation) -> list[str]:
    """One line a role, the load generator's left out."""
    return [
        f"{role}: {use.cores:.2f} cores"
        + ("" if use.busiest_thread is None else f", its busiest thread {use.busiest_thread:.2f}")
        for role, use in s.cpu.items()
        if role != "client"
    ]
