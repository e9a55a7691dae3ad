"""The logs beside this file and what each must be judged as.

Those without a prefix are of real servers (vLLM 0.32.0, CPU build, a tiny model), trimmed, with paths and pids made
up. `gpu_*` and `v0*` are written in the shape of vLLM's own texts, for what needs a GPU or an older version."""

from __future__ import annotations

from pathlib import Path

LOGS = Path(__file__).parent / "logs"

HEALTHY: tuple[str, ...] = ("boot_ok", "bad_requests", "gpu_boot_ok", "compile_ok", "engine_stopped")
HEALTHY += ("engine_stopped_boot", "api_terminated_boot")
"""Nothing failed, or nothing that their text shows."""
STOPPED = ("api_terminated_serving", "api_interrupted_serving")
"""Told to end while requests ran."""

FAILED: dict[str, tuple[str, str | None, bool, dict[str, float]]] = {
    "kv_too_small": ("kv_capacity", "kv_alloc", True, {"max_model_len_at_most": 480}),
    "kv_blocks_override": ("kv_capacity", "kv_alloc", True, {"max_model_len_at_most": 288}),
    "kv_zero": ("kv_capacity", "kv_alloc", True, {}),
    "low_utilization": ("kv_capacity", "kv_alloc", True, {}),
    "kv_bytes_over_free": ("kv_capacity", "kv_alloc", True, {"requested_bytes": 500 * 2**30}),
    "utilization_over_free": ("host_ram", "load", True, {"gpu_memory_utilization_at_most": 0.887}),
    "model_len_over_derived": ("arguments", "config", True, {"max_model_len_at_most": 4096}),
    "budget_below_seqs": (
        "arguments",
        "config",
        True,
        {"max_num_batched_tokens_at_least": 16, "max_num_seqs_at_most": 8},
    ),
    "removed_flag": ("version", "config", True, {}),
    "unknown_flag": ("arguments", "config", True, {}),
    "bad_choice": ("arguments", "config", True, {}),
    "bad_json": ("arguments", "config", True, {}),
    "bad_utilization": ("arguments", "config", True, {}),
    "heads_not_divisible": ("arguments", "config", True, {}),
    "quantization_mismatch": ("arguments", "config", True, {}),
    "bad_block_size": ("arguments", "kv_alloc", True, {}),
    "port_taken": ("port", "config", False, {}),
    "model_missing_path": ("model_missing", "config", False, {}),
    "model_missing_hub": ("model_missing", "config", False, {}),
    "model_adapter": ("model_missing", "config", False, {}),
    "model_no_tokenizer": ("model_missing", "config", False, {}),
    "model_no_weights": ("model_missing", "load", False, {}),
    "model_corrupt": ("model_missing", "config", False, {}),
    "model_unknown_type": ("version", "config", False, {}),
    "model_unknown_architecture": ("version", "config", False, {}),
    "shm_small": ("host_ram", "load", False, {}),
    "files_limit": ("unknown", "load", False, {}),
    "one_of_two_workers_killed": ("killed", "serving", False, {}),
    "engine_killed_boot": ("killed", "load", False, {}),
    "worker_killed_boot": ("killed", "load", False, {}),
    "engine_killed_serving": ("killed", "serving", False, {}),
    "worker_killed_serving": ("killed", "serving", False, {}),
    "worker_segv_serving": ("killed", "serving", False, {}),
    "worker_terminated_serving": ("killed", "serving", False, {}),
    "engine_terminated_serving": ("killed", "serving", False, {}),
    "worker_stopped": ("hang", "serving", False, {}),
    "gpu_weights_v1_runner": ("weights", "load", True, {"tried_to_allocate_bytes": 84 * 2**20}),
    "gpu_weights_v2_runner": ("weights", "load", True, {"tried_to_allocate_bytes": 224 * 2**20}),
    "gpu_profile": ("runtime_peak", "warmup", True, {"tried_to_allocate_bytes": 8 * 2**30}),
    "gpu_sampler_two_ranks": ("runtime_peak", "warmup", True, {"max_num_seqs_at_most": 1023}),
    "gpu_graph_capture": ("runtime_peak", "graph_capture", True, {"tried_to_allocate_bytes": 136 * 2**20}),
    "gpu_no_kv": ("kv_capacity", "kv_alloc", True, {"kv_deficit_bytes": 1331439862}),
    "gpu_kv_request": ("kv_capacity", "kv_alloc", True, {"max_model_len_at_most": 74688, "needed_bytes": 16 * 2**30}),
    "gpu_kv_bytes_too_many": ("kv_capacity", "kv_alloc", True, {}),
    "gpu_state_blocks": ("kv_capacity", "kv_alloc", True, {"max_num_seqs_at_most": 614}),
    "gpu_serving": ("runtime_peak", "serving", True, {"free_bytes": 22806528}),
    "gpu_serving_prompt_logprobs": ("runtime_peak", "serving", True, {}),
    "gpu_neighbour": ("neighbour", "load", False, {"gpu_memory_utilization_at_most": 0.141}),
    "gpu_neighbour_while_loading": ("neighbour", "load", False, {}),
    "gpu_profiling_race": ("profiling_race", "warmup", False, {}),
    "gpu_hang": ("hang", "serving", False, {}),
    "gpu_hang_unfinished": ("hang", "serving", False, {}),
    "gpu_frozen_but_healthy": ("hang", "serving", False, {}),
    "gpu_illegal_access": ("unknown", "serving", False, {}),
    "gpu_shm_too_small": ("host_ram", "load", False, {}),
    "gpu_port_internal": ("port", "load", False, {}),
    "gpu_mig_uuid": ("version", "config", False, {}),
    "v08_kv_request": ("kv_capacity", "kv_alloc", True, {"needed_bytes": 24 * 2**30}),
    "v0_kv_tokens": ("kv_capacity", "kv_alloc", True, {"max_model_len_at_most": 43328}),
    "v0_profile": ("runtime_peak", "warmup", True, {}),
}
"""log -> kind, phase, whether the configuration is at fault, some of the bounds"""


def known_log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")
