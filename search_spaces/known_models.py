"""Find a model's facts by name, without network, or by directory.

The table (`known_configs.py`) holds published config.json values; every entry passes through the same reader as a
directory does. A name is only a name: nothing in it is ever executed or expanded.
"""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from search_spaces.known_configs import KNOWN
from search_spaces.model import ModelFacts
from search_spaces.model_config import read_model
from search_spaces.model_directory import read_directory
from search_spaces.quantization import BY_SUFFIX

VARIANT_WORDS = frozenset({"instruct", "it", "chat", "base", "hf", "thinking", "pt", "meta", "preview", "fast"})
"""Parts of a checkpoint's name that do not change its shape."""
QUANT_WORDS = frozenset({*BY_SUFFIX, "dynamic", "quantized", "block", "g128", "unsloth"})

SHORT_NAMES = {
    "mistral-7b": "mistralai/Mistral-7B-v0.3",
    "mistral-nemo": "mistralai/Mistral-Nemo-Instruct-2407",
    "mistral-nemo-12b": "mistralai/Mistral-Nemo-Instruct-2407",
    "mistral-small-24b": "mistralai/Mistral-Small-24B-Instruct-2501",
    "mistral-large": "mistralai/Mistral-Large-Instruct-2411",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "mixtral-8x22b": "mistralai/Mixtral-8x22B-v0.1",
    "llama-4-scout": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "llama-4-maverick": "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "tinyllama-1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "jamba": "ai21labs/Jamba-v0.1",
}
"""What people type -> the checkpoint they mean."""


def find_model(name_or_dir: str) -> ModelFacts:
    """A directory if there is one, else the known model of that name (the part after the last `/`, in any case).

    Raises ValueError in one line: what the directory lacks, or the closest known names."""
    text = name_or_dir.strip()
    if not text:
        raise ValueError("the model's name is empty; give a name such as Qwen3-14B or a directory with a config.json")
    path = _as_path(text)
    if path is not None and path.is_dir():
        return read_directory(path)
    if path is not None and path.is_file():
        raise ValueError(_why_not_a_file(path))
    return _find_known(text)


def known_models() -> tuple[str, ...]:
    """Hugging Face ids, sorted."""
    return tuple(sorted(KNOWN))


@lru_cache(maxsize=256)
def _find_known(text: str) -> ModelFacts:
    last = re.sub(r"\s*\(.*?\)\s*$", "", text).rstrip("/").rsplit("/", 1)[-1]
    exact = {key.rsplit("/", 1)[-1].lower(): key for key in KNOWN}
    if last.lower() in exact:
        return _read(exact[last.lower()], exact[last.lower()], None)
    words = [w for w in re.split(r"[-_]", last.lower()) if w]
    if "gguf" in words:
        raise ValueError(f"unknown model {text!r}: GGUF files are not read here; give the original model's name")
    plain = {"-".join(_shape_words(key)): key for key in KNOWN}
    shape = "-".join(w for w in words if w not in VARIANT_WORDS | QUANT_WORDS)
    key = SHORT_NAMES.get(shape) or plain.get(shape)
    if key is None:
        raise ValueError(_unknown(text, last, exact))
    return _read(key, text, _quantization(words))


def _shape_words(key: str) -> list[str]:
    words = re.split(r"[-_]", key.rsplit("/", 1)[-1].lower())
    return [w for w in words if w not in VARIANT_WORDS]


def _quantization(words: list[str]) -> str | None:
    """The word that says how it is quantised; `GPTQ-Int8` is int8, `bnb-4bit` bitsandbytes."""
    found = [w for w in words if w in BY_SUFFIX]
    precise = [w for w in found if w != "gptq" and not ("bnb" in found and w == "4bit")]
    chosen = precise or found
    return chosen[-1] if chosen else None


def _read(key: str, name: str, quantization: str | None) -> ModelFacts:
    config: dict[str, Any] = dict(KNOWN[key])
    if quantization is not None:
        config["quantization_config"] = dict(BY_SUFFIX[quantization])
    return read_model(config, name)


def _as_path(text: str) -> Path | None:
    """None for what cannot be a path on this system (too long, a null byte)."""
    try:
        path = Path(text).expanduser()
        path.is_dir()
    except (OSError, ValueError, RuntimeError):
        return None
    return path


def _why_not_a_file(path: Path) -> str:
    if path.suffix == ".gguf":
        return f"{path}: this is a GGUF file, which carries no config.json; give the original Hugging Face model"
    return f"{path}: this is a file; give the directory that holds the model's config.json"


def _unknown(text: str, last: str, exact: dict[str, str]) -> str:
    if text.startswith(("/", "./", "../", "~")):
        return f"no such directory: {text}"
    close = difflib.get_close_matches(last.lower(), exact, n=3, cutoff=0.6)
    names = " or ".join(exact[c].rsplit("/", 1)[-1] for c in close)
    hint = f"; did you mean {names}?" if names else "."
    return f"unknown model {text!r}{hint} It is no directory here; give a known name or a directory with a config.json"
