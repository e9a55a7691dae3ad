"""The cause among what a scan found: the earliest that is no echo of another, and the phase it happened in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optimizer.diagnosis.scan import REFUSALS, Finding, Scan

PLAINER = {
    "oom": {"sampler", "load", "state_blocks", "no_kv"},
    "validation": None,
    "value_error": None,
}
"""vague sign -> signs of the same failure that say it plainly; None: any that is not vague."""

PHASE_OF_FRAME = (
    (
        "graph_capture",
        {"capture_model", "profile_cudagraph_memory", "capture_graphs", "_capture_cudagraphs", "capture"},
    ),
    (
        "warmup",
        {"profile_run", "determine_available_memory", "determine_num_available_blocks", "compile_or_warm_up_model"}
        | {"kernel_warmup", "warmup_kernels", "warming_up_model", "_dummy_run", "_dummy_sampler_run"},
    ),
    (
        "kv_alloc",
        {"initialize_kv_cache", "initialize_kv_cache_tensors", "_allocate_kv_cache_tensors", "initialize_cache"}
        | {"_allocate_kv_cache", "initialize_from_config", "get_kv_cache_configs", "raise_if_cache_size_invalid"},
    ),
    ("load", {"load_model", "load_weights", "init_device", "_prepare_weights", "init_worker_distributed_environment"}),
    (
        "serving",
        {"execute_model", "execute_model_async", "sample_tokens", "run_busy_loop", "_process_engine_step"}
        | {"run_engine_loop", "engine_step", "start_worker_execution_loop", "step_async"},
    ),
    ("config", {"create_engine_config", "create_model_config", "parse_args"}),
)
"""Looked for in this order: a capture runs inside a warm-up, which runs inside the setting up of the KV cache."""

MAX_ALIVE = 20
"""Answers and statistics after which an error is no longer taken for what killed the server later."""


def root_of(scan: Scan) -> Finding | None:
    """The finding that is the cause, or None if nothing found explains a failure."""
    findings = sorted((f for f in scan.findings if _counts(f, scan)), key=_when)
    causes = [f for f in findings if f.rank == "cause"]
    if causes:
        return _plainest(causes)
    for rank in ("report", "consequence"):
        if found := [f for f in findings if f.rank == rank]:
            said = [f for f in found if f.sign is not None or ": " in f.line.message]
            return said[0] if said else found[0]
    return None


def _when(finding: Finding) -> tuple[float, int]:
    """Processes' lines can lie in the log in another order than they were written in."""
    return (finding.time_s if finding.time_s is not None else 0.0, finding.line.number)


def _counts(finding: Finding, scan: Scan) -> bool:
    if not scan.has_died:
        return finding.n_alive_after == 0 and not (finding.is_ready and finding.kind in REFUSALS)
    return finding.n_alive_after <= MAX_ALIVE


def _plainest(causes: Sequence[Finding]) -> Finding:
    first = causes[0]
    if first.sign is None or not first.sign.is_vague:
        return first
    names = PLAINER[first.sign.name]
    for other in causes[1:]:
        if other.sign is not None and (other.sign.name in names if names else not other.sign.is_vague):
            return replace(other, line=first.line, details=[other.line]) if names else other
    values = [f for f in causes if f.sign is not None and f.sign.name == "value_error"]
    return values[0] if values and first.sign.name == "validation" else first


def phase_of(root: Finding, scan: Scan, was_ready: bool | None) -> str | None:
    """From the text where it tells, else the traceback, else how the engine died, else the progress before it."""
    if root.sign is not None and root.sign.phase is not None:
        return root.sign.phase
    told = phase_of_frames(root.frames) or (None if root.frames else phase_of_frames(tuple(scan.late_frames)))
    if told is not None and not (told == "serving" and scan.died_booting):
        return told
    if root.is_ready or was_ready or (scan.died_serving and not scan.died_booting):
        return "serving"
    if root.phase is None and (_is_of_pydantic(root) or (root.frames and not root.line.process)):
        return "config"
    return root.phase


def _is_of_pydantic(root: Finding) -> bool:
    """Arguments are checked by it before anything is loaded."""
    return root.line.message.lstrip().startswith("Value error, ")


def phase_of_frames(frames: Sequence[str]) -> str | None:
    functions = set(frames)
    return next((phase for phase, names in PHASE_OF_FRAME if functions & names), None)
