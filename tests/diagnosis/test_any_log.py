"""Whatever is handed to it, the judgement ends in a verdict or in none, and invents no failure."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.diagnosis.failure import Circumstances, judge
from optimizer.diagnosis.vllm_log import BootProgress, facts_of, phase_of_boot, read_log
from tests.diagnosis.known_logs import FAILED, HEALTHY, STOPPED, known_log

NAMES = sorted([*FAILED, *HEALTHY, *STOPPED])
KINDS = {kind for kind, *_ in FAILED.values()} | {"unknown"}

SCARY = [
    "(APIServer pid=9) INFO 11-29 10:10:00 [logger.py:43] Received request cmpl-1: prompt: 'torch.OutOfMemoryError: CUDA out of memory'",
    "(APIServer pid=9) INFO 11-29 10:10:00 [logger.py:43] Traceback (most recent call last): ValueError: No available memory for the cache blocks",
    "(APIServer pid=9) WARNING 11-29 10:10:00 [__init__.py:44] SECURITY WARNING: Development endpoints are enabled!",
    "(APIServer pid=9) WARNING 11-29 10:10:00 [system_utils.py:255] This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.",
    "(EngineCore pid=60) WARNING 11-29 10:10:00 [autotuner.py:3] CUDA out of memory. Tried to allocate 3 GiB while autotuning; skipping this tactic",
    "(APIServer pid=9) WARNING 11-29 10:10:00 [arg_utils.py:9] error: unrecognized arguments in a help text: OutOfMemory",
    "(APIServer pid=9) ERROR 11-29 10:10:00 [serving_completion.py:115] ValueError: The decoder prompt (length 5000) is longer than the maximum model length of 2048",
    "(APIServer pid=9) ERROR 11-29 10:10:00 [serving_chat.py:240] jinja2.exceptions.UndefinedError: 'messages' is undefined",
    'INFO:     127.0.0.1:40000 - "POST /v1/completions?q=Killed HTTP/1.1" 400 Bad Request',
    'INFO:     127.0.0.1:40000 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
    "(Worker pid=30) INFO 11-29 10:10:00 [gpu_worker.py:1034] Free memory on device (78.60/79.19 GiB) on startup. Desired GPU memory utilization is (0.92, 72.85 GiB).",
    "(EngineCore pid=60) INFO 11-29 10:10:00 [shm_broadcast.py:801] No available shared memory broadcast block found in 60 seconds.",
    "W1130 01:18:48.257000 20159 torch/_library/triton.py:53] Triton not available, Fatal Python error: Aborted",
    "/opt/venv/x.py:138: FutureWarning: RuntimeError: Engine core initialization failed",
]


@pytest.mark.parametrize("line", SCARY)
@pytest.mark.parametrize("name", ["boot_ok", "gpu_boot_ok"])
def test_scary_words_are_no_failure(name: str, line: str) -> None:
    lines = known_log(name).split("\n")
    for at in (0, len(lines) // 2, len(lines)):
        assert judge("\n".join([*lines[:at], line, *lines[at:]])) is None


@pytest.mark.parametrize("name", HEALTHY + STOPPED)
def test_no_prefix_of_a_healthy_log_is_a_failure(name: str) -> None:
    lines = known_log(name).split("\n")
    for end in range(0, len(lines), max(len(lines) // 40, 1)):
        assert judge("\n".join(lines[:end])) is None


@given(st.sampled_from(NAMES), st.integers(0, 40_000), st.integers(0, 40_000))
@settings(max_examples=120, deadline=None)
def test_any_piece_of_a_log_is_judged(name: str, begin: int, length: int) -> None:
    verdict = judge(known_log(name)[begin : begin + length])
    assert verdict is None or (verdict.kind in KINDS and verdict.cause and verdict.violation > 0)


@given(st.lists(st.sampled_from(NAMES), min_size=2, max_size=3, unique=True), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_any_interleaving_is_judged(names: list[str], chance: random.Random) -> None:
    queues = [known_log(name).split("\n") for name in names]
    mixed = []
    while queues := [q for q in queues if q]:
        mixed.append(chance.choice(queues).pop(0))
    verdict = judge("\n".join(mixed))
    assert verdict is None or verdict.kind in KINDS


@given(st.text(max_size=400) | st.text("(){}[]:'\"\\ pid=0ERORWNGkKMiBUx\r\n\x1b", max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_text_is_judged(text: str) -> None:
    judge(text)
    judge(text, Circumstances(exit_code=-9, extra_logs=text, hang_s=None, killed_by_us=text))
    lines = read_log(text)
    facts_of(lines)
    assert phase_of_boot(lines) in ("config", "load", "kv_alloc", "warmup", "graph_capture", "serving")


@given(st.sampled_from(NAMES))
@settings(max_examples=40, deadline=None)
def test_fed_line_by_line_or_whole_is_the_same(name: str) -> None:
    text = known_log(name)
    progress = BootProgress()
    for line in text.replace("\r", "\n").split("\n"):
        progress.feed(line)
    assert progress.phase == phase_of_boot(read_log(text))
    assert judge(text) == judge(iter(text.splitlines(keepends=True)))


ENDLESS = [
    "a",
    "a.",
    " ",
    "Error",
    "(a pid=1) ",
    'File "',
    "/dev/shm ",
    "CUDA out of memory ",
    "error: ",
    '{"log":',
    "1%",
]


@pytest.mark.parametrize("head", ["", "ERROR 11-29 10:00:00 [a.py:1] ", "ValueError: "])
@pytest.mark.parametrize("piece", ENDLESS)
@pytest.mark.timeout(20)
def test_no_line_is_too_long(head: str, piece: str) -> None:
    judge(head + piece * (1_000_000 // len(piece)))
