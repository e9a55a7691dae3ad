"""A local Hugging Face directory as ModelFacts, checked before any GPU is used.

What makes the directory unservable raises ValueError with everything found wrong in one line; what only needs a flag
(a missing tokenizer) becomes a note.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from search_spaces.model import ModelFacts
from search_spaces.model_config import read_model

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "spiece.model", "vocab.json", "qwen.tiktoken")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<i>\d{5})-of-(?P<n>\d{5})\.(?P<ext>safetensors|bin)")

NO_TOKENIZER = (
    "tokenizer missing: start vLLM with --tokenizer NAME_OR_DIR, or replay token ids with --skip-tokenizer-init "
    "(then no text can be sent)"
)


def read_directory(directory: Path) -> ModelFacts:
    """Facts of the checkpoint in `directory`. Raises ValueError in one line; opens no weight file."""
    problems = find_problems(directory)
    if problems:
        raise ValueError(f"{directory}: {'; '.join(problems)}")
    config = read_json(directory / "config.json")
    quant = directory / "hf_quant_config.json"
    if "quantization_config" not in config and quant.is_file():
        config = {**config, "quantization_config": {"quant_method": "modelopt", **read_json(quant)}}
    files = weight_files(directory)
    facts = read_model(config, str(directory), measured_weight_bytes=_measured(files, config))
    return replace(facts, notes=(*facts.notes, *find_notes(directory, config)))


def find_problems(directory: Path) -> tuple[str, ...]:
    """Everything that keeps vLLM from serving this directory, most basic first; empty when there is nothing."""
    names = {p.name for p in directory.iterdir()}
    if "config.json" not in names:
        return (_why_no_config(directory, names),)
    missing = missing_shards(directory, names)
    if not missing:
        return ()
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    problems = [f"weight file{'s' if len(missing) > 1 else ''} missing: {shown}; finish the download, or remove all "
                f"weight files to simulate from config.json alone"]  # fmt: skip
    return (*problems, *((NO_TOKENIZER,) if not _has_tokenizer(names) else ()))


def find_notes(directory: Path, config: dict[str, Any]) -> tuple[str, ...]:
    """What the user should know, though it does not stop a simulation."""
    names = {p.name for p in directory.iterdir()}
    notes = [] if _has_tokenizer(names) else [NO_TOKENIZER]
    if not weight_files(directory):
        notes.append("no weight files here: their size is counted from config.json")
    if config.get("auto_map"):
        notes.append("its config asks for remote code: vLLM may need --trust-remote-code")
    return tuple(notes)


def missing_shards(directory: Path, names: Iterable[str]) -> list[str]:
    """By the index files and by the `-0000x-of-0000n` names; sorted."""
    there = set(names)
    wanted: set[str] = set()
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if index in there:
            files = set(map(str, (read_json(directory / index).get("weight_map") or {}).values()))
            # A directory without any of the shards holds the configuration only; that is fine to simulate.
            wanted |= files if files & there else set()
    series: dict[tuple[str, str, str], int] = defaultdict(int)
    for name in there:
        if match := _SHARD.fullmatch(name):
            series[match["stem"], match["n"], match["ext"]] += 1
    for stem, n, ext in series:
        wanted |= {f"{stem}-{i:05d}-of-{n}.{ext}" for i in range(1, int(n) + 1)}
    return sorted(wanted - there)


def weight_files(directory: Path) -> tuple[Path, ...]:
    """The files vLLM would load: safetensors, else .bin; Mistral's consolidated copy only when it is all there is."""
    safetensors = sorted(directory.glob("*.safetensors"))
    own = [p for p in safetensors if not p.name.startswith(("consolidated", "adapter"))]
    return tuple(own or safetensors or sorted(directory.glob("pytorch_model*.bin")))


def read_json(path: Path) -> dict[str, Any]:
    """Raises ValueError naming file, line and column."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error.msg}, line {error.lineno} column {error.colno})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    if not isinstance(loaded, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(loaded).__name__}")
    return loaded


def _measured(files: tuple[Path, ...], config: dict[str, Any]) -> int | None:
    """Bytes on disk, unless they are not what ends up in memory (float32 checkpoints are loaded as 16 bit) or the files
    are placeholders (Git LFS pointers)."""
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    dtype = str(config.get("torch_dtype") or config.get("dtype") or (text or {}).get("torch_dtype") or "")
    size = sum(p.stat().st_size for p in files)
    return size if size > 1_000_000 and "32" not in dtype else None


def _has_tokenizer(names: Iterable[str]) -> bool:
    return any(n in TOKENIZERS or n.startswith("tokenizer.model") or n.endswith(".tiktoken") for n in names)


def _why_no_config(directory: Path, names: set[str]) -> str:
    if "adapter_config.json" in names:
        base = (
            read_json(directory / "adapter_config.json").get("base_model_name_or_path")
            or "a base model it does not name"
        )
        return f"this is a LoRA adapter for {base}; give the base model, and the adapter to vLLM as --lora-modules"
    if any(n.endswith(".gguf") for n in names):
        return "this holds a GGUF file, which carries no config.json; give the original Hugging Face model"
    if "params.json" in names:
        return "this is in Mistral's own format (params.json); give the Hugging Face form with a config.json"
    if any(p.is_dir() and (p / "config.json").is_file() for p in directory.iterdir()):
        inner = next(p.name for p in sorted(directory.iterdir()) if p.is_dir() and (p / "config.json").is_file())
        return f"no config.json here; did you mean its folder {inner}/?"
    return "no config.json: this is not a Hugging Face model directory" + (" (it is empty)" if not names else "")
