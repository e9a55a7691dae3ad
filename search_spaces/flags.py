"""What vLLM 0.32 admits for one flag by itself: type, range, suffixes. Rules between flags are in `constraint`.

Text is read as vLLM reads it (1k = 1000, 1K = 1024 only where it does), plus `1e3` for whole numbers.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from search_spaces.parameter import Value

Kind = Literal["int", "float", "bool", "choice", "text"]
_SUFFIX = {"k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


@dataclass(frozen=True, kw_only=True)
class FlagRange:
    """One flag's admissible values. `low` and `high` are inclusive unless marked open."""

    kind: Kind
    low: float | None = None
    high: float | None = None
    is_low_open: bool = False
    is_high_open: bool = False
    choices: tuple[str, ...] = ()
    has_suffix: bool = False
    """vLLM reads 1k, 1K, 64M here (and nowhere else)."""

    @property
    def text(self) -> str:
        """The allowed range in words."""
        if self.kind == "bool":
            return "true or false"
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        if self.kind == "text":
            return "text"
        noun = "a whole number" if self.kind == "int" else "a number"
        low = "" if self.low is None else f"{self.low:g} {'<' if self.is_low_open else '<='} "
        high = "" if self.high is None else f" {'<' if self.is_high_open else '<='} {self.high:g}"
        return f"{noun}, {low}value{high}" if low or high else noun

    def admits(self, value: float) -> bool:
        if self.low is not None and (value <= self.low if self.is_low_open else value < self.low):
            return False
        return self.high is None or not (value >= self.high if self.is_high_open else value > self.high)


def _int(low: int, *, high: int | None = None, suffix: bool = False) -> FlagRange:
    return FlagRange(kind="int", low=low, high=high, has_suffix=suffix)


_BOOL = FlagRange(kind="bool")
_TEXT = FlagRange(kind="text")
_KV_DTYPES = (
    "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla",
    "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6", "ultraquant_4bit",
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
)  # fmt: skip

FLAGS: Mapping[str, FlagRange] = {
    # scheduler: vLLM 0.32 config/scheduler.py
    "max_num_batched_tokens": _int(1, suffix=True),
    "max_num_seqs": _int(1),
    "max_num_active_seqs": _int(1),
    "max_num_scheduled_tokens": _int(1, suffix=True),
    "long_prefill_token_threshold": _int(0),
    "long_prefill_token_threshold_adaptive": _BOOL,
    "enable_chunked_prefill": _BOOL,
    "scheduling_policy": FlagRange(kind="choice", choices=("fcfs", "priority")),
    "scheduler_reserve_full_isl": _BOOL,
    "watermark": FlagRange(kind="float", low=0, high=1, is_high_open=True),
    "async_scheduling": _BOOL,
    "stream_interval": _int(1),
    "max_num_queued_reqs": _int(0),
    "max_num_queued_tokens": _int(0, suffix=True),
    "prefill_schedule_interval": _int(1),
    # cache: vLLM 0.32 config/cache.py
    "gpu_memory_utilization": FlagRange(kind="float", low=0, high=1, is_low_open=True),
    "kv_cache_memory_bytes": _int(1, suffix=True),
    "num_gpu_blocks_override": _int(1),
    "block_size": _int(1),
    "kv_cache_dtype": FlagRange(kind="choice", choices=_KV_DTYPES),
    "enable_prefix_caching": _BOOL,
    "prefix_caching_hash_algo": FlagRange(kind="choice", choices=("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")),
    "cpu_offload_gb": FlagRange(kind="float", low=0),
    "kv_offloading_size": FlagRange(kind="float", low=0),
    # model, graphs, parallelism, speculation
    "max_model_len": _int(1, suffix=True),
    "enforce_eager": _BOOL,
    "max_cudagraph_capture_size": _int(1),
    "optimization_level": _int(0, high=3),
    "performance_mode": FlagRange(kind="choice", choices=("balanced", "interactivity", "throughput")),
    "tensor_parallel_size": _int(1),
    "pipeline_parallel_size": _int(1),
    "data_parallel_size": _int(1),
    "decode_context_parallel_size": _int(1),
    "enable_expert_parallel": _BOOL,
    "enable_dbo": _BOOL,
    "api_server_count": _int(1),
    "renderer_num_workers": _int(1),
    "disable_custom_all_reduce": _BOOL,
    "enable_flashinfer_autotune": _BOOL,
    "attention_backend": _TEXT,
    "speculative_config": _TEXT,
    "quantization": _TEXT,
    "dtype": _TEXT,
    "load_format": _TEXT,
    "model": _TEXT,
}
"""Argument (underscores) -> what it admits by itself."""


def parse_value(name: str, raw: object, where: str = "") -> Value:
    """`raw` (text from a command line, or a YAML value) as the flag's value.

    Raises ValueError naming `where` (default: the flag), the value and the allowed range. An unknown flag keeps its
    YAML type, and text is read as a whole number, a number or a switch where it is one."""
    spec = FLAGS.get(name)
    if spec is None:
        return _free(raw)
    value = _typed(spec, raw)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and not spec.admits(value)):
        raise ValueError(f"{where or name}: {_shown(raw)} is not allowed{_hint(spec, raw)}; allowed: {spec.text}")
    return value


def check_value(name: str, value: Value, where: str = "") -> None:
    """Raises ValueError when vLLM would refuse this value of this flag. None (not given) and unknown flags pass."""
    if value is not None and name in FLAGS:
        parse_value(name, value, where)


def unknown_flag(name: str) -> str:
    """The hint that goes with a name that is no known flag."""
    close = difflib.get_close_matches(name, FLAGS, n=2, cutoff=0.7)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _typed(spec: FlagRange, raw: object) -> Value:
    """The value in the flag's type; None when it is not one."""
    if spec.kind == "bool":
        return _as_bool(raw)
    if spec.kind == "choice":
        return raw if isinstance(raw, str) and raw in spec.choices else None
    if spec.kind == "text":
        return raw if isinstance(raw, str) and raw.strip() else None
    number = _as_number(raw, spec.has_suffix)
    if number is None or spec.kind == "float":
        return None if number is None else float(number)
    return int(number) if number == int(number) else None


def _as_bool(raw: object) -> bool | None:
    if isinstance(raw, bool):
        return raw
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    return words.get(raw.strip().lower()) if isinstance(raw, str) else None


def _as_number(raw: object, has_suffix: bool) -> int | float | None:
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int | float):
        return raw if math.isfinite(raw) else None
    if not isinstance(raw, str):
        return None
    text = raw.strip()
    if has_suffix and (match := re.fullmatch(r"(\d+)([kmgtKMGT])|(\d+\.\d+)([kmgt])", text)):
        return float(match[1] or match[3]) * _SUFFIX[match[2] or match[4]]
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        number = float(text)
        return number if math.isfinite(number) else None
    return None


def _free(raw: object) -> Value:
    if isinstance(raw, bool | int | float):
        return raw
    if not isinstance(raw, str):
        return str(raw) if raw is not None else None
    number = _as_number(raw, False)
    if number is not None:
        return number
    if (switch := {"true": True, "false": False}.get(raw.strip().lower())) is not None:
        return switch
    return raw


def _hint(spec: FlagRange, raw: object) -> str:
    text = str(raw)
    if re.fullmatch(r"\d+,\d+", text) and spec.kind in ("int", "float"):
        return (
            f" (write {text.replace(',', '.')} with a point)" if spec.kind == "float" else " (write it without a comma)"
        )
    if spec.kind == "float" and spec.high == 1 and (number := _as_number(raw, False)) is not None and 1 < number <= 100:
        return f" (a share: write {number / 100:g} for {number:g} %)"
    if spec.kind == "int" and not spec.has_suffix and re.fullmatch(r"\d+(\.\d+)?[kmgtKMGT]", text):
        return " (this flag takes no k or K)"
    return ""


def _shown(raw: object) -> str:
    return repr(raw)
