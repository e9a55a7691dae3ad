"""How far a server has come, from the lines it prints: fed one line at a time while it boots."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from optimizer.diagnosis.log_line import LogLine, parse_line

PHASES = ("config", "load", "kv_alloc", "warmup", "graph_capture", "serving")
"""Boot order with a given KV size. With a measured one the profiling run, a warm-up, comes before `kv_alloc`."""

_MARKERS = {
    "config": r"non-default args:|vLLM API server version|Resolved architecture",
    "load": r"Initializing an? (?:V\d )?LLM engine|Starting to load model|Loading model from scratch"
    r"|Loading weights took|Initializing model took|Time spent downloading|is assigned as DP rank|checkpoint shards"
    r"|loading shards|Prefetching checkpoint|Downloading shards|Fetching \d+ files|Model Streamer",
    "warmup": r"Model loading took|[Mm]odel weights took|Dynamo bytecode|torch\.compile t"
    r"|ompil(?:e|ing) (?:a|the) graph|load the compiled graph|[Ww]arming up|[Aa]utotuning"
    r"|Encoder cache will be|[Mm]emory profiling takes"
    r"|Profiling CUDA graph|Estimated CUDA graph",
    "kv_alloc": r"Available KV cache memory|KV cache size:|(?:Explicitly|Auto) set \(|(?:GPU|CPU|cuda|cpu) blocks:"
    r"|Overriding num_gpu_blocks|memory for KV Cache|Setting kv cache block size|Auto-fit max_model_len",
    "graph_capture": r"Capturing (?:CUDA |cuda)graph|Capturing the model for CUDA|Graph capturing finished"
    r"|CUDA graph pool memory",
    "serving": r"Starting vLLM (?:API )?server|Available routes are|Application startup complete|Uvicorn running on",
}
_MARK = re.compile("|".join(f"(?P<{phase}>{pattern})" for phase, pattern in _MARKERS.items()))
_BAR = re.compile(r"\d%|\d/\d+ \[")
READY = re.compile(r"Application startup complete|Uvicorn running on")
_ENGINE_UP = re.compile(r"init engine \(profile")


class BootProgress:
    """The phase that the newest telling line belongs to, and whether anything moves at all.

    Phases are taken as they come; only `serving` is never left again."""

    def __init__(self) -> None:
        self.phase = "config"
        self.is_ready = False
        self.n_steps = 0
        """Lines so far that showed progress: a boot whose count stands still is stuck."""
        self.detail = ""
        """The newest such line's text."""

    def feed(self, line: str | LogLine) -> bool:
        """Whether this line shows progress: a phase's line, or a progress bar that moved."""
        if self.is_ready:
            return False
        line = parse_line(0, line) if isinstance(line, str) else line
        if line.level not in ("INFO", ""):
            return False
        mark, message = _MARK.search(line.message), line.message
        if mark is None and not _ENGINE_UP.search(message) and (self.phase == "serving" or not _BAR.search(message)):
            return False
        if message == self.detail:
            return False
        if mark is not None and self.phase != "serving":
            self.phase = str(mark.lastgroup)
        self.is_ready = self.is_ready or READY.search(message) is not None
        self.detail = message
        self.n_steps += 1
        return True


def phase_of_boot(lines: Iterable[LogLine]) -> str:
    progress = BootProgress()
    for line in lines:
        progress.feed(line)
    return progress.phase


def phase_seconds(lines: Iterable[LogLine]) -> dict[str, float]:
    """Seconds spent in each phase of the boot, as far as the lines carry times (whole seconds in vLLM's own format)."""
    seconds: dict[str, float] = {}
    for phase, begin_s, end_s in _spans(lines):
        seconds[phase] = seconds.get(phase, 0.0) + max(end_s - begin_s, 0.0)
    return seconds


def _spans(lines: Iterable[LogLine]) -> Iterator[tuple[str, float, float]]:
    progress, before_s = BootProgress(), None
    for line in lines:
        phase = progress.phase
        progress.feed(line)
        if line.time_s is not None:
            if before_s is not None:
                yield phase, before_s, line.time_s
            before_s = line.time_s
        if progress.phase == "serving":
            return
