"""What a study's other trials did under the load that troubles one of them: with them, it is a matter of parameters."""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.questions.answer import Change
from optimizer.questions.demand import FULL_POOL, Elsewhere
from optimizer.questions.pool import WORTH_IT
from optimizer.questions.situation import Situation
from optimizer.reporting.member import Front, FrontMember
from search_spaces.hardware import GIB

POOL = "kv_cache_memory_bytes"


def elsewhere_of(front: Front, member: FrontMember, server: str, loads: Sequence[Situation]) -> Elsewhere | None:
    """None where no other trial keeps every limit. All trials of a study get the same loads."""
    kept = [m for m in front.trials if m.is_feasible and m.trial != member.trial]
    if not kept:
        return None
    now = member.configs[server].get(POOL)
    if not isinstance(now, int) or not any(_is_full(s) for s in loads if s.load != "saturation"):
        return Elsewhere(len(kept))
    larger = sorted((size, m.trial) for m in kept if (size := _pool(m, server)) is not None and size > WORTH_IT * now)
    if not larger:
        return Elsewhere(len(kept))
    (least, trial), most = larger[0], larger[-1][0]
    sizes = f"{least / GIB:.2g}" if least == most else f"{least / GIB:.2g} to {most / GIB:.2g}"
    told = f", {len(larger)} of them with a larger KV cache for this server ({sizes} GiB against {now / GIB:.2g})"
    why = f"trial {trial} keeps every limit with {least / GIB:.2g} GiB of KV cache for this server"
    return Elsewhere(len(kept), told, (Change(POOL, least, why, "fewer preemptions, a shorter queue"),))


def _is_full(s: Situation) -> bool:
    return s.kv_usage is not None and s.kv_usage.most >= FULL_POOL


def _pool(member: FrontMember, server: str) -> int | None:
    size = member.configs[server].get(POOL) if server in member.configs else None
    return size if isinstance(size, int) else None
