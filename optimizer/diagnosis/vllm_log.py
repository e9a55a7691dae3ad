"""What a vLLM log says about the server that wrote it. Reading is in `log_line`, progress in `boot_progress`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from optimizer.deployment.secrets import is_secret_name
from optimizer.diagnosis.boot_progress import PHASES, BootProgress, phase_of_boot, phase_seconds
from optimizer.diagnosis.log_line import LogLine, parse_line, read_lines, read_log

__all__ = [
    "PHASES",
    "BootProgress",
    "LogFacts",
    "LogLine",
    "facts_of",
    "parse_line",
    "phase_of_boot",
    "read_lines",
    "read_log",
]

GIB = float(1 << 30)


@dataclass(frozen=True)
class LogFacts:
    """None: the log does not say. Of several ranks, the least memory (vLLM sizes by it) and the longest time."""

    vllm_version: str | None = None
    kv_tokens: int | None = None
    kv_blocks: int | None = None
    kv_available_bytes: float | None = None
    """Below 0 when weights and activations already exceed the budget."""
    model_weights_bytes: float | None = None
    graph_bytes: float | None = None
    """CUDA graphs: as estimated before the KV cache was sized, else as captured."""
    model_weights_s: float | None = None
    compile_s: float | None = None
    graph_capture_s: float | None = None
    init_s: float | None = None
    """Profiling, KV allocation, compilation and warm-up together."""
    non_default_args: Mapping[str, Any] | None = None
    """Without secrets."""
    max_model_len: int | None = None
    device_memory_bytes: float | None = None
    """The whole card (on a CPU: the RAM); of several the least."""
    gpu_memory_utilization: float | None = None
    """As the engine repeats it; the arguments may say it too."""
    is_ready: bool = False
    phases: Mapping[str, float] = field(default_factory=dict)
    """phase of the boot -> seconds"""


_NUMBER = r"(-?[\d,]+(?:\.\d+)?)"
_VERSION = re.compile(r"(?:API server version|\bversion|LLM engine \(v)\s*(\d+\.\d+[\w.+]*)")
_SIZES = {
    "kv_tokens": re.compile(rf"KV cache size: {_NUMBER} tokens"),
    "kv_blocks": re.compile(r"(?:# (?:GPU|CPU|cuda|cpu) blocks: |num_gpu_blocks_override=)(\d+)"),
    "kv_available_gib": re.compile(rf"Available KV cache memory: {_NUMBER} Gi?B|(?:Explicitly|Auto) set \({_NUMBER}/"),
    "max_model_len": re.compile(r"Using max model len (\d+)|max_seq_len=(\d+)"),
}
_LARGEST = {
    "weights_gib": re.compile(rf"[Mm]odel (?:loading|weights) took {_NUMBER} Gi?B"),
    "weights_s": re.compile(rf"[Mm]odel (?:loading|weights) took .*? and {_NUMBER} seconds"),
    "compile_s": re.compile(
        rf"torch\.compile (?:and initial profiling run )?took {_NUMBER} s|torch\.compile takes {_NUMBER} s in total"
        rf"|\(compilation: {_NUMBER} s"
    ),
    "graph_capture_s": re.compile(rf"Graph capturing finished in {_NUMBER} secs"),
    "graphs_estimated_gib": re.compile(rf"Estimated CUDA graph memory: {_NUMBER} GiB total"),
    "graphs_gib": re.compile(rf"Graph capturing finished in .*?, took {_NUMBER} Gi?B"),
    "init_s": re.compile(rf"init engine \(.*?\) took {_NUMBER} s"),
}
_CARD = re.compile(
    rf"total capacity of {_NUMBER} GiB|; {_NUMBER} GiB total capacity|total_gpu_memory \({_NUMBER} ?GiB\)"
    rf"|(?:[Mm]emory (?:on|of) [^()]{{0,80}}|GPU memory[^()]{{0,40}})\([\d.]+ ?/ ?{_NUMBER} ?GiB\)"
)
_UTILIZATION = re.compile(
    r"(?:memory utilization (?:is )?\(|gpu_memory_utilization \(|\bgpu_memory_utilization['\"]?[=:] ?)(\d*\.\d+|1\b)"
)
_TELLING = re.compile(
    "version|LLM engine|KV cache|blocks|max model len|max_seq_len|took|takes|compil|non-default args|startup complete"
    "|set \\(|Uvicorn running|graph memory|Graph capturing"
)
_ARGS = re.compile(r"non-default args: (\{.*\})")
_PAIR = re.compile(r"'(\w+)': ('(?:\\.|[^'\\])*'|-?\d[\w.+-]*|True|False|None)")


def facts_of(lines: Iterable[LogLine]) -> LogFacts:
    lines = list(lines)
    found = _Found()
    for line in lines:
        if line.level not in ("ERROR", "CRITICAL") and _TELLING.search(line.message):
            found.read(line.message)
    return LogFacts(
        vllm_version=found.version,
        kv_tokens=_int(found.numbers.get("kv_tokens")),
        kv_blocks=_int(found.numbers.get("kv_blocks")),
        kv_available_bytes=_bytes(found.numbers.get("kv_available_gib")),
        model_weights_bytes=_bytes(found.numbers.get("weights_gib")),
        graph_bytes=_bytes(found.numbers.get("graphs_estimated_gib", found.numbers.get("graphs_gib"))),
        model_weights_s=found.numbers.get("weights_s"),
        compile_s=found.numbers.get("compile_s"),
        graph_capture_s=found.numbers.get("graph_capture_s"),
        init_s=found.numbers.get("init_s"),
        non_default_args=found.args,
        max_model_len=_int(found.numbers.get("max_model_len")),
        device_memory_bytes=min((b for line in lines if (b := _card_bytes(line.message))), default=None),
        gpu_memory_utilization=next((float(m[1]) for line in lines if (m := _UTILIZATION.search(line.message))), None),
        is_ready=found.progress.is_ready,
        phases=phase_seconds(lines),
    )


def tells_card(message: str) -> bool:
    """Whether it says how much memory the card has."""
    return _card_bytes(message) is not None


def _card_bytes(message: str) -> float | None:
    match = _CARD.search(message) if "GiB" in message else None
    return float(next(g for g in match.groups() if g).replace(",", "")) * GIB if match else None


class _Found:
    """The numbers seen so far: of several ranks the least size and the longest time."""

    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}
        self.version: str | None = None
        self.args: dict[str, Any] | None = None
        self.progress = BootProgress()

    def read(self, message: str) -> None:
        self.progress.feed(message)
        for better, patterns in ((min, _SIZES), (max, _LARGEST)):
            for name, pattern in patterns.items():
                if match := pattern.search(message):
                    value = float(next(g for g in match.groups() if g).replace(",", ""))
                    self.numbers[name] = better(value, self.numbers.get(name, value))
        if self.version is None and (match := _VERSION.search(message)):
            self.version = match[1].rstrip(".")
        if self.args is None and (match := _ARGS.search(message)):
            self.args = read_args(match[1])


def read_args(text: str) -> dict[str, Any]:
    """A printed Python dict; where it holds objects that are no literals, the pairs that are."""
    try:
        args = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        args = {name: _literal(value) for name, value in _PAIR.findall(text)}
    return {str(k): v for k, v in args.items() if not is_secret_name(str(k))} if isinstance(args, dict) else {}


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _bytes(gib: float | None) -> float | None:
    return None if gib is None else gib * GIB
