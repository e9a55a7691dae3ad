"""The front as data: JSON and CSV, units in the names."""

from __future__ import annotations

import json
from collections.abc import Sequence

from optimizer.deployment.secrets import mask
from optimizer.reporting.front import front_json
from optimizer.reporting.front_table import verdict_text
from optimizer.reporting.member import FREE_MEMORY, STEADY_PREEMPTIONS, STRESS_PREEMPTIONS, Front, FrontMember

_SPREADSHEET = "=+-@\t\r"
"""A spreadsheet runs a cell that begins with one of these."""


def json_text(front: Front, members: Sequence[FrontMember]) -> str:
    """The members as `front.json` holds them, with their deviation from the reference and without the others."""
    chosen = {m.trial for m in members}
    data = front_json(front.trials, front.meta)
    rows = [m for m in (*data["members"], *data["others"]) if m["trial"] in chosen]
    for row in rows:
        comparison = front.comparison(front.trial(row["trial"]))
        row["change_vs_reference"] = {d.metric: d.change for d in comparison.deltas} if comparison else None
        row["verdict_vs_reference"] = verdict_text(comparison)
    data |= {"members": [r for r in rows if r["is_on_front"]], "others": [r for r in rows if not r["is_on_front"]]}
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def csv_text(front: Front, members: Sequence[FrontMember]) -> str:
    """One row a member: objectives and safety with units in their names, changes in percent, every argument."""
    import pandas as pd

    rows = [_csv_row(front, member) for member in members]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in columns] for row in rows]
    return pd.DataFrame(cells, columns=columns, dtype=object).to_csv(index=False, lineterminator="\n")


def _csv_row(front: Front, member: FrontMember) -> dict[str, object]:
    comparison = front.comparison(member)
    row: dict[str, object] = {
        "trial": member.trial,
        "label": member.label,
        "picks": " ".join(member.picks),
        "is_on_front": member.is_on_front,
        "is_confirmed": member.is_confirmed,
        "gains_not_seen_again": " ".join(front.unseen_gains(member)),
        "is_simulated": front.meta.is_simulated,
    }
    for i, objective in enumerate(front.meta.objectives):
        row[objective.metric] = None if member.values is None else member.values[i]
        change = comparison.deltas[i].change if comparison else None
        row[f"{objective.metric}_change_percent"] = None if change is None else round(100 * change, 4)
    row["verdict_vs_reference"] = verdict_text(comparison)
    row |= {name: member.metrics.get(name) for name in (STEADY_PREEMPTIONS, STRESS_PREEMPTIONS, FREE_MEMORY)}
    row["missed_limits"] = "; ".join(limit for limit, _ in member.missed)
    row |= member.parameters()
    return row | {
        "model": mask(front.meta.model),
        "gpu": front.meta.gpu,
        "engine": front.meta.engine,
        "study": mask(front.meta.study),
        "workload_hash": front.meta.workload_hash,
    }


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value[:1] in _SPREADSHEET and value:
        return "'" + value
    return repr(value) if isinstance(value, float) else value
