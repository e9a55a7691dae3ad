"""From a Config to what the simulator needs: resolved defaults, refused combinations, and what it does not model."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.engines.simulator.budgets import Budgets
from optimizer.errors import EngineFailed
from search_spaces.capacity import DEFAULT_UTILIZATION
from search_spaces.config import Config
from search_spaces.hardware import GpuFacts, batch_defaults
from search_spaces.model import ModelFacts

MODELLED = frozenset(
    (
        *("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size", "max_num_active_seqs"),
        *("max_num_scheduled_tokens", "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive"),
        *("enable_chunked_prefill", "scheduler_reserve_full_isl", "watermark", "async_scheduling"),
        *("enable_prefix_caching", "max_num_queued_reqs", "enforce_eager", "gpu_memory_utilization"),
        *("kv_cache_memory_bytes", "num_gpu_blocks_override", "kv_cache_dtype", "tensor_parallel_size"),
        *("max_cudagraph_capture_size", "scheduling_policy", "model"),
    )
)
LIVE = frozenset(
    {
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_num_active_seqs",
        "watermark",
        "long_prefill_token_threshold",
        "kv_cache_memory_bytes",
    }
)
"""What a running engine can move, downwards from its boot for the first two and the last."""
ONE_BYTE_KV = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
TWO_BYTE_KV = ("auto", "float16", "bfloat16")


@dataclass(frozen=True)
class Settings:
    """One instance's arguments, resolved as `vllm serve` would."""

    budgets: Budgets
    tp: int
    is_eager: bool
    kv_dtype_bytes: float | None
    gpu_memory_utilization: float
    max_graph_tokens: int | None
    ignored: tuple[str, ...]
    """Arguments without an effect here; reported, so that nobody tunes them on the simulator."""


def resolve(config: Config, model: ModelFacts, gpu: GpuFacts) -> Settings:
    """Raises EngineFailed (kind `arguments`) where `vllm serve` would refuse to start."""
    try:
        settings = _read(config, model, gpu)
    except ValueError as error:
        raise _refused(str(error)) from error
    _check(settings, config, model)
    return settings


def _read(config: Config, model: ModelFacts, gpu: GpuFacts) -> Settings:
    default_tokens, default_seqs = batch_defaults(gpu)
    max_model_len = config.int_("max_model_len", model.max_position_tokens)
    max_num_seqs = config.int_("max_num_seqs", default_seqs)
    if "max_num_batched_tokens" in config:
        max_tokens = config.int_("max_num_batched_tokens")
        max_num_seqs = config.int_("max_num_seqs", min(max_num_seqs, max_tokens))
    else:
        max_tokens = min(default_tokens, max_num_seqs * max_model_len)
        if not _flag(config, "enable_chunked_prefill", True):
            max_tokens = max(max_tokens, max_model_len)
    return Settings(
        budgets=Budgets(
            max_num_batched_tokens=max_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            block_size=config.int_("block_size", 16),
            max_num_active_seqs=_optional_int(config, "max_num_active_seqs"),
            max_num_scheduled_tokens=_optional_int(config, "max_num_scheduled_tokens"),
            long_prefill_token_threshold=config.int_("long_prefill_token_threshold", 0),
            is_threshold_adaptive=_flag(config, "long_prefill_token_threshold_adaptive", False),
            is_prefill_chunked=_flag(config, "enable_chunked_prefill", True),
            reserves_full_prompt=_flag(config, "scheduler_reserve_full_isl", True),
            watermark=config.float_("watermark", 0.0),
            is_async=_flag(config, "async_scheduling", True),
            is_prefix_cached=_flag(config, "enable_prefix_caching", True),
            max_num_queued_reqs=_optional_int(config, "max_num_queued_reqs"),
        ),
        tp=config.int_("tensor_parallel_size", 1),
        is_eager=_flag(config, "enforce_eager", False),
        kv_dtype_bytes=_kv_bytes(str(config.get("kv_cache_dtype", "auto"))),
        gpu_memory_utilization=config.float_("gpu_memory_utilization", DEFAULT_UTILIZATION),
        max_graph_tokens=_optional_int(config, "max_cudagraph_capture_size"),
        ignored=tuple(sorted(name for name in config if name not in MODELLED)),
    )


def _check(settings: Settings, config: Config, model: ModelFacts) -> None:
    """vLLM 0.32's cross-constraints (config/scheduler.py:319-353, config/model.py:1547, field bounds)."""
    b, tp = settings.budgets, settings.tp
    tokens, seqs, length = b.max_num_batched_tokens, b.max_num_seqs, b.max_model_len
    threshold, active = b.long_prefill_token_threshold, b.max_num_active_seqs
    rules = (
        (min(tokens, seqs, length, b.block_size, tp) < 1, "budgets, lengths and sizes must be at least 1"),
        (tokens < seqs, f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs})."),
        (
            not b.is_prefill_chunked and tokens < length,
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length})",
        ),
        (
            active is not None and not 1 <= active <= seqs,
            f"max_num_active_seqs ({active}) cannot be greater than max_num_seqs ({seqs}).",
        ),
        (
            not 0 <= threshold <= length,
            f"long_prefill_token_threshold ({threshold}) cannot be greater than the max_model_len ({length}).",
        ),
        (not 0 <= b.watermark < 1, f"watermark ({b.watermark}): Input should be in [0, 1)"),
        (
            not 0 < settings.gpu_memory_utilization <= 1,
            f"gpu_memory_utilization ({settings.gpu_memory_utilization}): Input should be in (0, 1]",
        ),
        (
            length > model.max_position_tokens,
            f"User-specified max_model_len ({length}) is greater than the derived max_model_len"
            f" ({model.max_position_tokens})",
        ),
        (
            model.n_heads % tp != 0,
            f"Total number of attention heads ({model.n_heads}) must be divisible by tensor parallel size ({tp}).",
        ),
    )
    for is_broken, message in rules:
        if is_broken:
            raise _refused(message)
    if str(config.get("scheduling_policy", "fcfs")) != "fcfs":
        raise _refused("the simulator schedules first come first served; scheduling_policy must be fcfs")


def _refused(message: str) -> EngineFailed:
    return EngineFailed("arguments", "arguments", message, is_config_fault=True)


def _flag(config: Config, name: str, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected true or false, got {value!r}")
    return value


def _optional_int(config: Config, name: str) -> int | None:
    return config.int_(name) if name in config else None


def _kv_bytes(dtype: str) -> float | None:
    if dtype == "auto":
        return None
    if dtype in ONE_BYTE_KV:
        return 1.0
    if dtype in TWO_BYTE_KV:
        return 2.0
    raise ValueError(f"kv_cache_dtype {dtype!r} is not modelled; use one of {', '.join((*TWO_BYTE_KV, *ONE_BYTE_KV))}")
