"""Whose fault a failure is: the same text can mean the configuration, another process, a race or the host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from optimizer.deployment.vllm_flags import FLAGS, REMOVED, REMOVED_SWITCHES
from optimizer.diagnosis.bounds import others_in, utilization_of
from optimizer.diagnosis.circumstances import Circumstances
from optimizer.diagnosis.scan import Finding
from optimizer.diagnosis.vllm_log import GIB, LogFacts

CONTEXT_BYTES = 1.25 * GIB
"""A card without any other process has at least all but this much free: CUDA context, driver and display."""
JUST_ENDED_S = 30.0
"""So soon after the trial before, its memory may not be back yet."""
LOW_RAM_BYTES = GIB


DETAILED = frozenset(
    {"rule", "nccl", "validation", "library", "device_fault", "no_device", "device_not_ready", "inspect", "permission"}
    | {"threads", "placement", "architecture", "model_type"}
)
"""Signs whose own words say which file, rule or device it was."""


@dataclass(frozen=True)
class Blame:
    kind: str
    is_config_fault: bool
    cause: str


def blame(
    root: Finding, phase: str | None, bounds: Mapping[str, float], facts: LogFacts, given: Circumstances
) -> Blame:
    name = root.sign.name if root.sign else ""
    plain = _plain(root, name)
    if name == "flags":
        return _flag_blame(root)
    if name == "free_memory":
        return _low_memory(plain, bounds, given)
    if name in ("free_ram", "kv_ram"):
        return _low_ram(plain, name, bounds)
    if name == "oom":
        return _out_of_memory(root, phase, bounds, facts, given)
    if plain.kind == "kv_capacity" and given.neighbour_starting:
        cause = f"{plain.cause}, while another server was loading on the same card and was counted in"
        return Blame("profiling_race", False, cause)
    if name == "host_alloc" and "parse_safetensors_file_metadata" in root.frames:
        return Blame("model_missing", False, "the model's weight files are damaged: their header cannot be read")
    return plain


def _plain(root: Finding, name: str) -> Blame:
    if root.sign is None:
        return Blame("unknown", False, one_line(root.line.message))
    groups = {k: one_line(v) for k, v in root.groups.items()}
    try:
        cause = root.sign.cause.format_map(groups)
    except KeyError:
        cause = root.sign.cause
    if name in DETAILED:
        detail = _detail(root)
        cause = detail if name == "rule" else f"{cause}: {detail}"
    if name == "killed":
        signal = groups.get("signal") or groups.get("core_signal") or groups.get("old_signal") or "9"
        who = groups.get("who") or groups.get("core") or groups.get("container") or "a process"
        cause = f"{who} was killed by signal {signal}"
    return Blame(root.sign.kind, root.sign.is_config_fault, one_line(cause))


def _detail(root: Finding) -> str:
    """The words after the exception's name; pydantic puts the field and the rule on the lines that follow."""
    if root.sign is not None and root.sign.name == "validation" and root.details:
        lines = [line.message.strip() for line in root.details]
        return " ".join(x for x in lines if x and not x.startswith("For further information"))
    return re.sub(r"^(?:[\w.]+(?:Error|Exception): |Value error, )", "", root.line.message.strip())


def one_line(text: str, most: int = 300) -> str:
    text = re.sub(r" \[type=\w+, input_value=.*", "", " ".join(text[: 4 * most].split()))
    return text if len(text) <= most else text[: most - 1] + "…"


def _flag_blame(root: Finding) -> Blame:
    words = [w.lstrip("-").split("=")[0].replace("_", "-") for w in root.groups["flags"].split() if w.startswith("--")]
    gone = [w for w in words if w in REMOVED or w.removeprefix("no-") in REMOVED_SWITCHES]
    later = [w for w in words if w in FLAGS or w.removeprefix("no-") in FLAGS]
    if gone:
        hints = "; ".join(f"--{w} was removed: {REMOVED.get(w) or REMOVED[w.removeprefix('no-')]}" for w in gone)
        return Blame("version", True, hints)
    if later:
        return Blame("version", True, f"this vLLM does not have --{', --'.join(later)} yet (0.32 does)")
    return Blame("arguments", True, f"vLLM does not know {one_line(root.groups['flags'])}")


def _low_memory(plain: Blame, bounds: Mapping[str, float], given: Circumstances) -> Blame:
    """Another process holds the memory, unless what is missing is no more than any card lacks."""
    if given.neighbour_starting:
        return Blame("profiling_race", False, f"{plain.cause}: another server of ours was starting on the card")
    foreign = _foreign(given)
    if set(given.foreign_pids) & set(given.own_former_pids):
        return Blame("orphan", False, f"{plain.cause}: an earlier server of ours still holds memory ({foreign})")
    if given.foreign_pids:
        return Blame("neighbour", False, f"{plain.cause}: another process holds memory ({foreign})")
    if given.previous_trial_ended_s_ago is not None and given.previous_trial_ended_s_ago <= JUST_ENDED_S:
        return Blame("orphan", False, f"{plain.cause}: the memory of the trial before is not back yet")
    if bounds["total_bytes"] - bounds["free_bytes"] <= CONTEXT_BYTES:
        return Blame("arguments", True, f"{plain.cause}, though no other process needs be there: the driver keeps some")
    return Blame("neighbour", False, f"{plain.cause}: another process holds the rest")


def _foreign(given: Circumstances) -> str:
    known = {pid: given.foreign_bytes.get(pid) for pid in given.foreign_pids}
    return ", ".join(f"pid {pid}" + (f": {size / 2**20:.0f} MiB" if size else "") for pid, size in known.items())


def _low_ram(plain: Blame, name: str, bounds: Mapping[str, float]) -> Blame:
    """More than the machine has is the configuration's fault; more than is free now is its other processes'."""
    requested, total = bounds.get("requested_bytes", 0.0), bounds.get("total_bytes", 0.0)
    if requested <= 0:
        return Blame("kv_capacity", True, "what the process already uses leaves no memory for the KV cache")
    if requested < total:
        return plain
    return Blame("kv_capacity" if name == "kv_ram" else "host_ram", True, f"{plain.cause}: the machine has no more")


def _out_of_memory(
    root: Finding, phase: str | None, bounds: Mapping[str, float], facts: LogFacts, given: Circumstances
) -> Blame:
    if given.neighbour_starting:
        return Blame("profiling_race", False, "the device ran out of memory while another server was starting on it")
    if other := _greedy_neighbour(root, bounds, facts, given):
        return other
    return {
        "load": Blame("weights", True, "the model's weights do not fit on the card"),
        "kv_alloc": Blame("kv_capacity", True, "the KV cache asked for does not fit into the free memory"),
        "warmup": Blame("runtime_peak", True, "the profiling or warm-up step ran out of device memory"),
        "graph_capture": Blame("runtime_peak", True, "capturing CUDA graphs ran out of device memory"),
        "serving": Blame("runtime_peak", True, "a step ran out of device memory while serving"),
    }.get(phase or "", Blame("runtime_peak", True, "the device ran out of memory"))


def _greedy_neighbour(
    root: Finding, bounds: Mapping[str, float], facts: LogFacts, given: Circumstances
) -> Blame | None:
    """Processes that PyTorch names beside its own are to blame if they hold more than the share this server leaves
    free, and this server less than its own share; of an unknown share, if they hold more than a driver's context."""
    share = utilization_of(facts, given, {})
    total, own = bounds.get("total_bytes"), bounds.get("used_by_this_process_bytes")
    others = {
        p: b
        for p, b in others_in(root.line.message).items()
        if p not in given.sibling_pids and (not total or b <= total)
    }
    if share is None or not total or own is None:
        if sum(others.values()) <= CONTEXT_BYTES:
            return None
    elif sum(others.values()) <= (1 - share) * total or own > share * total:
        return None
    holders = ", ".join(f"pid {pid}: {size / 2**20:.0f} MiB" for pid, size in others.items())
    kind = "orphan" if set(others) & set(given.own_former_pids) else "neighbour"
    return Blame(kind, False, f"the device ran out of memory that another process holds ({holders})")
