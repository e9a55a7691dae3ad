"""The value of one flag, read as vLLM reads it, from a command's words or from a YAML value.

Refuses what vLLM would refuse, in one line that says what to write instead.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

from optimizer.deployment.secrets import mask
from optimizer.deployment.vllm_flags import CHOICES, FLAGS, Flag
from optimizer.errors import UserError

_SUFFIXES = {s: 1000**i for i, s in enumerate("kmgt", 1)} | {s: 1024**i for i, s in enumerate("KMGT", 1)}
_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_COMMA = re.compile(r"\d+,\d+")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")

_AT_LEAST_ZERO = frozenset(
    {
        "long_prefill_token_threshold",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "cpu_offload_gb",
        "kv_offloading_size",
    }
)
_LEVELS = range(4)


def read_value(flag: Flag, raw: object) -> object:
    """`raw` (words or a YAML value) as what the server gets. None: not set. Raises UserError without a place."""
    if raw is None or (raw in ("", "None") and not flag.is_list):
        return None
    if not flag.takes_value:
        return _read_switch(flag, raw)
    if flag.is_list:
        return _read_list(flag, raw)
    if flag.kind == "json":
        return _read_json(flag, raw)
    if isinstance(raw, list) and len(raw) == 1:
        return read_value(flag, raw[0])
    if isinstance(raw, bool | dict | list):
        raise UserError(f"{flag.name}: expected one value, got {_shown(raw)}")
    value = _read_scalar(flag, raw)
    check_range(flag, value)
    return value


def _read_switch(flag: Flag, raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    wanted = f"write {flag.name} or no-{flag.name}, or in YAML true or false without quotes"
    raise UserError(f"{flag.name}: a switch takes no value, got {_shown(raw)}; {wanted}")


def _read_list(flag: Flag, raw: object) -> object:
    items = list(raw) if isinstance(raw, Sequence) and not isinstance(raw, str) else [raw]
    if not items:
        return None
    if flag.kind == "int_list":
        return [_whole(flag, item) for item in items]
    return raw if isinstance(raw, str) else items


def _read_json(flag: Flag, raw: object) -> object:
    if not isinstance(raw, str):
        return raw
    if raw.strip()[:1] not in ("{", "["):
        return raw
    try:
        return json.loads(raw)
    except ValueError as error:
        raise UserError(f"{flag.name}: not valid JSON ({error}): {_shown(raw)}") from None


def _read_scalar(flag: Flag, raw: object) -> int | float | str:
    if flag.kind == "int":
        return _whole(flag, raw)
    if flag.kind == "suffixed_int":
        return _suffixed(flag, raw)
    if flag.kind == "float":
        return _real(flag, raw)
    if flag.name == "optimization-level":
        return _level(flag, raw)
    text = str(raw)
    choices = CHOICES.get(flag.key)
    if choices and text not in choices:
        raise UserError(f"{flag.name}: {_shown(raw)} is not one of {', '.join(choices)}")
    return text


def _whole(flag: Flag, raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    text = str(raw).strip()
    if isinstance(raw, str) and re.fullmatch(r"[+-]?\d+(?:_\d+)*", text):
        return int(text)
    if _SUFFIXED.fullmatch(text):
        takers = ", ".join(f.name for f in FLAGS.values() if f.kind == "suffixed_int")
        raise UserError(f"{flag.name}: {_shown(raw)}: vLLM takes k and K only for {takers}; write the number in full")
    raise UserError(f"{flag.name}: expected a whole number, got {_shown(raw)}{_hint(text, '')}")


def _suffixed(flag: Flag, raw: object) -> int:
    text = str(raw).strip()
    if flag.name == "max-model-len" and text.lower() in ("auto", "-1"):
        return -1
    whole = whole_of_suffixed(text) if isinstance(raw, str) else None
    return _whole(flag, raw) if whole is None else whole


def whole_of_suffixed(text: str) -> int | None:
    """16k is 16000 and 16K is 16384 (vLLM 0.32 utils/argparse_utils.py:25); None without a suffix.

    Raises UserError for decimals with a capital suffix, as vLLM does."""
    found = _SUFFIXED.fullmatch(text.strip())
    if found is None:
        return None
    number, suffix = found.groups()
    if suffix.isupper() and "." in number:
        raise UserError(f"{text}: decimals need a small suffix; {number}{suffix.lower()} counts in thousands")
    return int(float(number) * _SUFFIXES[suffix])


def _real(flag: Flag, raw: object) -> float:
    text = str(raw).strip()
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{flag.name}: expected a number, got {_shown(raw)}{_hint(text, '.')}") from None
    if not math.isfinite(value):
        raise UserError(f"{flag.name}: expected a finite number, got {_shown(raw)}")
    return value


def _level(flag: Flag, raw: object) -> int:
    text = str(raw).removeprefix("O")
    if not text.isdigit() or int(text) not in _LEVELS:
        raise UserError(f"{flag.name}: {_shown(raw)} is not one of 0, 1, 2, 3 (details go to compilation-config)")
    return int(text)


def check_range(flag: Flag, value: object) -> None:
    """Raises UserError for what no server can start with. Sources: the Field bounds of vLLM 0.32 config/*.py."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if flag.name == "gpu-memory-utilization" and not 0 < value <= 1:
        share = f"; it is a share of the card's memory: write {value / 100:g}" if 1 < value <= 100 else ""
        raise UserError(f"{flag.name}: {value:g} is not above 0 and at most 1{share}")
    if flag.name == "watermark" and not 0 <= value < 1:
        raise UserError(f"{flag.name}: {value:g} is not a share of the blocks (at least 0, below 1)")
    low = 0 if flag.key in _AT_LEAST_ZERO else 1
    is_auto = flag.name == "max-model-len" and value == -1
    if flag.kind in ("int", "suffixed_int") and _is_counted(flag) and value < low and not is_auto:
        raise UserError(f"{flag.name}: {value} is below {low}")


def _is_counted(flag: Flag) -> bool:
    """Whether the flag counts something; ports, ranks, seeds and the like are vLLM's to judge."""
    return flag.name.startswith(("max-num-", "max-model", "long-prefill", "kv-cache-memory")) or flag.name.endswith(
        ("-parallel-size", "block-size", "stream-interval", "api-server-count", "blocks-override")
    )


def _hint(text: str, comma_means: str) -> str:
    if _COMMA.fullmatch(text):
        return f"; write {text.replace(',', comma_means)}"
    if found := _PERCENT.fullmatch(text):
        return f"; write {float(found[1]) / 100:g}"
    return ""


def _shown(raw: object) -> str:
    text = mask(repr(raw))
    return text if len(text) <= 60 else text[:57] + "..."
