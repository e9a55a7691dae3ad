"""How far from fitting a failed configuration was, so that a sampler sees a slope and not a wall."""

from __future__ import annotations

from collections.abc import Mapping

from optimizer.diagnosis.scan import Finding

LEAST = 0.01
"""Whatever failed is worse than a limit that was just met."""


def violation_of(kind: str, bounds: Mapping[str, float], root: Finding) -> float:
    """> 0: the share by which it did not fit, 1 where no text gives it."""
    share = _share(kind, bounds, root)
    return 1.0 if share is None else max(share, LEAST)


def _share(kind: str, bounds: Mapping[str, float], root: Finding) -> float | None:
    groups = root.groups
    if kind == "kv_capacity":
        if "max_seqs" in groups:
            return 1 - float(groups["max_seqs"]) / float(groups["n_seqs"])
        if "max_model_len" in groups and "max_model_len_at_most" in bounds:
            return 1 - bounds["max_model_len_at_most"] / float(groups["max_model_len"])
        if "needed_bytes" in bounds and "kv_deficit_bytes" in bounds:
            return bounds["kv_deficit_bytes"] / bounds["needed_bytes"]
        if "kv_deficit_bytes" in bounds and "total_bytes" in bounds:
            return 1 + bounds["kv_deficit_bytes"] / bounds["total_bytes"]
        return None
    if kind in ("runtime_peak", "weights") and {"tried_to_allocate_bytes", "total_bytes", "free_bytes"} <= set(bounds):
        missing = bounds["tried_to_allocate_bytes"] - bounds["free_bytes"]
        return missing / bounds["total_bytes"] + (1.0 if kind == "weights" else 0.0)
    return None
