"""Rules between parameters; violation > 0 is bad. `check_config` holds a configuration against them without vLLM.

Each rule is one that makes vLLM 0.32 refuse to start (its source is named); what vLLM only warns about warns here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.flags import check_value
from search_spaces.hardware import GpuFacts, batch_defaults
from search_spaces.memory_use import n_draft_tokens
from search_spaces.model import ModelFacts
from search_spaces.parameter import Value


@dataclass(frozen=True)
class Setting:
    """A configuration with what vLLM would fill in, and the model and machine it is for."""

    values: Mapping[str, Value]
    model: ModelFacts | None = None
    n_gpus: int | None = None

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def is_off(self, name: str) -> bool:
        return self.values.get(name) is False


@dataclass(frozen=True)
class Constraint:
    """One rule. `violation` is the relative miss: <= 0 holds, > 0 is bad, None does not apply."""

    flags: tuple[str, ...]
    violation: Callable[[Setting], float | None]
    advice: str
    source: str

    def message(self, setting: Setting) -> str:
        """Flags, their values, and what to do."""
        shown = ", ".join(f"{f} {setting.values.get(f)}" for f in self.flags if setting.values.get(f) is not None)
        return f"{shown}: {self.advice}"


def _over(smaller: str, larger: str) -> Callable[[Setting], float | None]:
    """`smaller` may not exceed `larger`."""

    def violation(s: Setting) -> float | None:
        low, high = s.number(smaller), s.number(larger)
        return None if low is None or high is None else (low - high) / max(high, 1.0)

    return violation


def _unchunked(s: Setting) -> float | None:
    return _over("max_model_len", "max_num_batched_tokens")(s) if s.is_off("enable_chunked_prefill") else None


def _beyond_model(s: Setting) -> float | None:
    longest = s.number("max_model_len")
    if s.model is None or longest is None:
        return None
    return (longest - s.model.max_position_tokens) / s.model.max_position_tokens


def _heads(s: Setting) -> float | None:
    tp = s.number("tensor_parallel_size")
    if s.model is None or tp is None or not s.model.n_heads:
        return None
    return float(s.model.n_heads % int(tp) != 0)


def _world(s: Setting) -> float | None:
    if s.n_gpus is None:
        return None
    sizes = (s.number(f"{k}_parallel_size") or 1 for k in ("tensor", "pipeline", "data"))
    world = 1.0
    for size in sizes:
        world *= size
    return (world - s.n_gpus) / max(s.n_gpus, 1)


def _experts(s: Setting) -> float | None:
    if s.model is None or s.values.get("enable_expert_parallel") is not True:
        return None
    return float(s.model.n_experts == 0)


def _decode_context(s: Setting) -> float | None:
    tp, dcp = s.number("tensor_parallel_size") or 1, s.number("decode_context_parallel_size")
    return None if dcp is None else float(tp % dcp != 0)


def _draft_slots(s: Setting) -> float | None:
    """Extra slots a draft needs per request (vLLM 0.32 config/speculative.py:1888): 1 for a draft model, 0 for n-gram,
    EAGLE and MTP; their parallel variants up to the number of draft tokens."""
    k = n_draft_tokens(s.values)
    budget = s.number("max_num_batched_tokens")
    if not k or budget is None:
        return None
    return (k - budget + 1) / budget


def _speculation_is_json(s: Setting) -> float | None:
    value = s.values.get("speculative_config")
    if not isinstance(value, str):
        return None
    try:
        return float(not isinstance(json.loads(value), dict))
    except json.JSONDecodeError:
        return 1.0


CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        ("max_num_batched_tokens", "max_num_seqs"),
        _over("max_num_seqs", "max_num_batched_tokens"),
        "a step must hold one token of every running sequence; raise max_num_batched_tokens or lower max_num_seqs",
        "config/scheduler.py:329",
    ),
    Constraint(
        ("enable_chunked_prefill", "max_num_batched_tokens", "max_model_len"),
        _unchunked,
        "without chunked prefill a whole prompt must fit in one step; raise max_num_batched_tokens to max_model_len, "
        "or leave chunked prefill on",
        "config/scheduler.py:319",
    ),
    Constraint(
        ("max_num_active_seqs", "max_num_seqs"),
        _over("max_num_active_seqs", "max_num_seqs"),
        "lower max_num_active_seqs to at most max_num_seqs",
        "config/scheduler.py:339",
    ),
    Constraint(
        ("long_prefill_token_threshold", "max_model_len"),
        _over("long_prefill_token_threshold", "max_model_len"),
        "lower long_prefill_token_threshold to at most max_model_len, or set it to 0 (off)",
        "config/scheduler.py:353",
    ),
    Constraint(
        ("max_model_len",),
        _beyond_model,
        "longer than the model's own maximum; lower max_model_len",
        "config/model.py:2646",
    ),
    Constraint(
        ("tensor_parallel_size",),
        _heads,
        "must divide the model's number of attention heads",
        "config/model.py:1547",
    ),
    Constraint(
        ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
        _world,
        "needs more GPUs than there are on a node; lower the parallel sizes",
        "config/parallel.py:1053",
    ),
    Constraint(("enable_expert_parallel",), _experts, "the model has no experts; leave it out", "config/model.py:1487"),
    Constraint(
        ("tensor_parallel_size", "decode_context_parallel_size"),
        _decode_context,
        "tensor_parallel_size must be a multiple of decode_context_parallel_size",
        "config/parallel.py:596",
    ),
    Constraint(
        ("max_num_batched_tokens", "speculative_config"),
        _draft_slots,
        "no token is left beside the draft tokens; raise max_num_batched_tokens",
        "config/vllm.py:2286",
    ),
    Constraint(
        ("speculative_config",), _speculation_is_json, "must be a JSON object", "engine/arg_utils.py (json argument)"
    ),
)


def resolve_defaults(
    config: Mapping[str, Any], model: ModelFacts | None, max_model_len: int | None, gpu: GpuFacts | None
) -> dict[str, Value]:
    """The values vLLM fills in before it checks them (0.32 engine/arg_utils.py:3097)."""
    values: dict[str, Value] = {k: v for k, v in config.items() if v is not None}
    longest = values.get("max_model_len") or max_model_len or (model.max_position_tokens if model else None)
    if longest is not None:
        values["max_model_len"] = longest
    if gpu is None:
        return values
    tokens, seqs = batch_defaults(gpu)
    scale = 2 if values.get("performance_mode") == "throughput" else 1
    n_seqs = values.get("max_num_seqs", seqs * scale)
    if "max_num_batched_tokens" not in values:
        budget = tokens * scale
        if values.get("enable_chunked_prefill") is False and isinstance(longest, int):
            budget = max(budget, longest)
        whole = n_seqs * longest if isinstance(n_seqs, int) and isinstance(longest, int) else budget
        values["max_num_batched_tokens"] = min(budget, whole)
    if "max_num_seqs" not in values and isinstance(n_seqs, int):
        budget_now = values["max_num_batched_tokens"]
        values["max_num_seqs"] = min(n_seqs, budget_now) if isinstance(budget_now, int) else n_seqs
    return values


def check_config(
    config: Mapping[str, Any],
    model: ModelFacts | None = None,
    max_model_len: int | None = None,
    *,
    gpu: GpuFacts | None = None,
    n_gpus: int | None = None,
) -> list[str]:
    """Every reason vLLM would refuse this configuration, one line each: flag, value, what to do. Empty: none known."""
    messages = []
    for name, value in config.items():
        try:
            check_value(name, value)
        except ValueError as error:
            messages.append(str(error))
    if messages:  # rules between values make no sense when a value itself is wrong
        return messages
    setting = Setting(resolve_defaults(config, model, max_model_len, gpu), model, n_gpus)
    return [c.message(setting) for c in CONSTRAINTS if (c.violation(setting) or 0.0) > 0]


def violations(config: Mapping[str, Any], model: ModelFacts | None = None) -> dict[str, float]:
    """Rule (its flags joined) -> violation, for the rules that apply; > 0 is bad."""
    setting = Setting(resolve_defaults(config, model, None, None), model)
    found = {" / ".join(c.flags): c.violation(setting) for c in CONSTRAINTS}
    return {name: value for name, value in found.items() if value is not None}


def warn_config(config: Mapping[str, Any], model: ModelFacts | None = None) -> list[str]:
    """What vLLM accepts but a user should know."""
    s = Setting(resolve_defaults(config, model, None, None), model)
    messages = []
    if (s.number("gpu_memory_utilization") or 0) > 0.97:
        messages.append(
            f"gpu_memory_utilization {s.values['gpu_memory_utilization']}: leaves no room for the CUDA context and "
            f"run-time peaks; most cards fail above 0.95"
        )
    if s.values.get("kv_cache_memory_bytes") is not None and s.values.get("gpu_memory_utilization") is not None:
        messages.append("kv_cache_memory_bytes is set: gpu_memory_utilization is ignored; give one of them")
    tokens, seqs, longest = (s.number(n) for n in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"))
    if tokens and seqs and longest and tokens > seqs * longest:
        messages.append(
            f"max_num_batched_tokens {tokens:.0f} is never used up: "
            f"max_num_seqs x max_model_len is {seqs * longest:.0f}"
        )
    if s.is_off("enable_chunked_prefill"):
        messages.append("enable_chunked_prefill false: vLLM calls this unsupported for generating models")
    return messages
