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


OTHERS = {
    "SGLang": r"server_args=ServerArgs\(|sglang[/.](?:srt|python|launch_server)|mem[-_]fraction[-_]static",
    "Text Generation Inference": r"text_generation_(?:launcher|router|server)\b",
    "TensorRT-LLM": r"\[TensorRT-LLM\]|\[TRT-LLM\]|\btrtllm-serve\b",
    "llama.cpp": r"\bllama_(?:model_load|init_from|context|kv_cache)\w*:|\bggml_\w+:|llama server listening",
    "LMDeploy": r"\blmdeploy[./ -]|\[TM\]\[(?:INFO|WARNING|ERROR|FATAL)\]",
    "Ollama": r"source=(?:server|routes|sched|runner)\.go:\d+",
}
"""Engine -> what only its own server prints."""
_OTHER = re.compile("|".join(f"(?P<e{n}>{pattern})" for n, pattern in enumerate(OTHERS.values())))
_NAMES = tuple(OTHERS)
_OWN = re.compile(r"EngineCore|APIServer|vLLM API server|LLM engine \(v|AsyncLLM|\bvllm serve\b|vllm\.entrypoints")


def other_engine(text: str) -> str:
    """Whose server prints such a line, if not vLLM's; else empty."""
    found = _OTHER.search(text)
    return _NAMES[int(str(found.lastgroup)[1:])] if found else ""


def is_of_vllm(line: LogLine) -> bool:
    """What only a vLLM server prints: libraries of vLLM's speak in other servers' logs, too."""
    return line.process.startswith(("EngineCore", "APIServer")) or _OWN.search(line.text) is not None
