"""Whether a line is one that a vLLM server or Python prints: a text without any is no server's log."""

from __future__ import annotations

import re

from optimizer.diagnosis.log_line import LogLine

_PRINTED = re.compile(
    r"Traceback \(most recent call last\)|^[\s|]*File \".*\", line \d+|^usage: |\bvLLM\b|\bvllm(?:\.\w|==| serve)"
    r"|HTTP/[\d.]+\" \d{3}|Uvicorn running on|Application startup complete|(?:Started|Finished) server process"
    r"|Waiting for application|Running: \d+ reqs|checkpoint shards|Capturing (?:CUDA |cuda)graph|NCCL (?:INFO|WARN)"
)


def is_of_server(line: LogLine) -> bool:
    """vLLM's lines have a process, or a level with a date or a source file; prose has neither."""
    if line.process or (line.level and (line.source or line.time_s is not None)):
        return True
    return _PRINTED.search(line.message) is not None
