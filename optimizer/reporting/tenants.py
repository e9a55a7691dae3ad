"""Several tenants, each with tails of its own: what each waits at the rate R, beside what it is promised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from objectives.metric import Targets
from objectives.objective import Objective
from objectives.wording import name_of, reading
from optimizer.reporting.member import Front, FrontMember


def tenant_texts(
    member: FrontMember, objectives: Sequence[Objective], targets: Mapping[str, Targets]
) -> Iterator[tuple[str, str]]:
    """(tenant, `P99 TTFT 5,230 ms (target 5,175 ms), ...`); nothing where there is one tenant only."""
    for tenant, target in targets.items() if len(targets) > 1 else ():
        bounds = {_tail("ttft", objectives): target.ttft_ms, _tail("itl", objectives): target.itl_ms}
        tails = [
            f"{name_of(metric).removesuffix(' (steady)')} {reading(metric, value)}"
            + ("" if bound is None else f" (target {reading(metric, bound)})")
            for metric, bound in bounds.items()
            if (value := member.metrics.get(f"{tenant}:{metric}")) is not None
        ]
        if tails:
            yield tenant, ", ".join(tails)


def _tail(kind: str, objectives: Sequence[Objective]) -> str:
    """The percentile that the objectives are judged by: fewer samples than a P99 needs give P95 or the slowest."""
    own = next((o.metric for o in objectives if f"_{kind}_" in o.metric), "")
    percentile = next((p for p in ("p95", "max") if f"_{p}_" in own), "p99")
    return f"steady_{kind}_{percentile}_ms"


def tenant_lines(front: Front, targets: Mapping[str, Targets]) -> list[str]:
    """A line for the reference and one for each member with a name."""
    reference = front.reference
    shown = [*([reference] if reference is not None and reference not in front.named else []), *front.named]
    lines = []
    for member in shown:
        texts = [f"{tenant} {text}" for tenant, text in tenant_texts(member, front.meta.objectives, targets)]
        if texts:
            name = "/".join(member.picks) or ("reference" if member == reference else "better without a price")
            lines.append(f"tenants of trial {member.trial} ({name}): {'; '.join(texts)}")
    return lines
