"""From proposed values to arguments vLLM accepts: the cross-rules of `constraint`, held by construction.

A pinned value (one the user fixed, or whose parameter has one value left) is never moved; the other side gives way.
Two pinned values that contradict each other are refused when the space is built, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from search_spaces.memory import BLOCK_TOKENS
from search_spaces.parameter import NumberParameter, Parameter, ShareParameter, Value


def repair(
    values: Mapping[str, Value], parameters: Mapping[str, Parameter], is_pinned: Callable[[str], bool]
) -> dict[str, Value]:
    """`values` holds latent values (shares unresolved) and max_model_len; the result only arguments."""
    fixed = dict(values)
    longest = _whole(fixed, "max_model_len")
    is_chunked = fixed.get("enable_chunked_prefill") is not False
    _fit_budget(fixed, parameters, is_pinned, 0 if is_chunked else longest)
    for name, parameter in parameters.items():
        if isinstance(parameter, ShareParameter):
            fixed[name] = parameter.resolve(fixed[name], _whole(fixed, parameter.of))
    threshold = fixed.get("long_prefill_token_threshold")
    if isinstance(threshold, int) and (threshold < BLOCK_TOKENS or threshold >= longest or not is_chunked):
        fixed["long_prefill_token_threshold"] = 0  # below a block it is no chunk; at max_model_len it never binds
    _at_most(fixed, "max_num_active_seqs", "max_num_seqs")
    _at_most(fixed, "max_num_scheduled_tokens", "max_num_batched_tokens")
    return fixed


def _fit_budget(
    values: dict[str, Value], parameters: Mapping[str, Parameter], is_pinned: Callable[[str], bool], at_least: int
) -> None:
    """max_num_batched_tokens >= max_num_seqs, and >= a whole prompt where prefill is not chunked."""
    tokens, seqs = _whole(values, "max_num_batched_tokens"), _whole(values, "max_num_seqs")
    if tokens < at_least and not is_pinned("max_num_batched_tokens"):
        tokens = _grid_at_least(parameters.get("max_num_batched_tokens"), at_least)
    if tokens < seqs and is_pinned("max_num_seqs") and not is_pinned("max_num_batched_tokens"):
        tokens = _grid_at_least(parameters.get("max_num_batched_tokens"), seqs)
    elif tokens < seqs:
        seqs = _grid_at_most(parameters.get("max_num_seqs"), tokens)
    values["max_num_batched_tokens"], values["max_num_seqs"] = tokens, seqs


def _grid_at_least(parameter: Parameter | None, bound: int) -> int:
    return min((v for v in _grid(parameter) if v >= bound), default=bound)


def _grid_at_most(parameter: Parameter | None, bound: int) -> int:
    return max((v for v in _grid(parameter) if v <= bound), default=bound)


def _grid(parameter: Parameter | None) -> Sequence[int]:
    return [int(v) for v in parameter.grid] if isinstance(parameter, NumberParameter) else []


def _at_most(values: dict[str, Value], name: str, other: str) -> None:
    if values.get(name) is not None:
        values[name] = min(_whole(values, name), _whole(values, other))


def _whole(values: Mapping[str, Value], name: str) -> int:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: expected a whole number, got {value!r}")
    return int(value)
