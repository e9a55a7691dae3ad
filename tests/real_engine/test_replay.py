"""The replay client against real vLLM on a CPU: lengths, sharing, cancellation, failures, and vLLM's own client."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from optimizer.processes import end_all, session_of
from optimizer.replay.client import Replay, ReplayResult
from optimizer.replay.plan import ReplayPlan
from optimizer.workload.prefix import reusable_tokens
from optimizer.workload.trace import Trace
from tests.real_engine.tiny_model import VOCABULARY, write_tiny_model
from tests.replay.traces import plan_of, target_of, trace_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]
MACHINE_NOISE = 2.5
"""Two cores that run the server, both clients and other tests: a median TTFT moved fivefold between two of our own
replays there. `bench/replay_client.py` compares the clients themselves, against a server that logs its own times."""

MODEL, BLOCK_TOKENS, LONGEST = "tiny", 32, 2048
MAIN = "from vllm.entrypoints.cli.main import main; main()"
FLAGS = f"""--load-format dummy --enforce-eager --block-size {BLOCK_TOKENS} --max-model-len {LONGEST} --max-num-seqs 16
    --max-num-batched-tokens 512 --kv-cache-memory-bytes 64M --enable-prompt-tokens-details
    --served-model-name {MODEL} --host 127.0.0.1"""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_SERVER_DEV_MODE": "1",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def served_url(vllm_python: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One booted server for the module, gone with everything it started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [vllm_python, "-c", MAIN, "serve", str(model), *FLAGS.split(), "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT}, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_up(url, process, log)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
        end_all(lambda: session_of(process.pid), 20)
        process.wait()


def wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.25)
    raise AssertionError(f"the server did not come up:\n{log.read_text(errors='replace')[-3000:]}")


def post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30):
        pass


def figure(url: str, name: str) -> float:
    """Sum over the samples of this name on the server's metrics page."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return sum(s.value for f in families for s in f.samples if s.name == name)


def replayed(plan: ReplayPlan) -> ReplayResult:
    with Replay(plan) as replay:
        result = replay.result(300)
    print(result.client)
    return result


def plan_for(url: str, trace: Trace, **more: Any) -> ReplayPlan:
    extra = {"extra_body": more.pop("extra_body", {})}
    return plan_of(trace, target_of(url, model=MODEL, **extra), vocabulary=VOCABULARY, time_limit_s=240.0, **more)


def failures(result: ReplayResult) -> list[str | None]:
    return [record.failure for record in result.records]


def sharing_trace() -> Trace:
    """Rows far enough apart that each finds what the ones before it left."""
    blocks = [[1, 2, 3], [1, 2, 4], [], [1], [1, 2, 3], [9, 2], [1, 2, 4, 7]]
    prompts = [300, 290, 200, 130, 192, 150, 250]
    return trace_of(0.5 * np.arange(7), prompts, [5, 17, 1, 9, 30, 4, 12], blocks=blocks, prefix_block_tokens=64)


def expected_hits(trace: Trace) -> list[int]:
    """Whole blocks of the server's size, and never the last token: it has to be computed."""
    reusable = reusable_tokens(trace)
    assert reusable is not None
    longest = np.minimum(reusable, trace.prompt_tokens - 1)
    return [int(n) for n in longest // BLOCK_TOKENS * BLOCK_TOKENS]


def test_lengths_are_exact_and_sharing_is_the_traces(served_url: str) -> None:  # case TOOL-13
    trace = sharing_trace()
    post(f"{served_url}/reset_prefix_cache")
    before = [figure(served_url, f"vllm:prefix_cache_{name}_total") for name in ("queries", "hits")]
    result = replayed(plan_for(served_url, trace))
    queries, hits = (
        figure(served_url, f"vllm:prefix_cache_{name}_total") - was
        for name, was in zip(("queries", "hits"), before, strict=True)
    )
    assert failures(result) == [None] * 7
    assert [r.output_tokens for r in result.records] == trace.output_tokens.tolist()
    assert [r.prompt_tokens for r in result.records] == trace.prompt_tokens.tolist()
    assert [r.cached_prompt_tokens for r in result.records] == expected_hits(trace)
    assert (queries, hits) == (trace.prompt_tokens.sum(), sum(expected_hits(trace))) and hits > 0


def test_a_fresh_salt_finds_nothing_and_the_same_prompts_find_everything(served_url: str) -> None:  # case TOOL-12
    trace = trace_of([0.0, 0.3], 200, 4)
    rows = [
        [r.cached_prompt_tokens for r in replayed(plan_for(served_url, trace, cache_salt=s)).records] for s in "aab"
    ]
    assert rows == [[0, 0], [192, 192], [0, 0]]


def test_cancelled_requests_leave_the_server_within_a_second(served_url: str) -> None:
    trace = trace_of(np.zeros(24), 64, 1500)
    with Replay(plan_for(served_url, trace)) as replay:
        deadline = time.monotonic() + 60
        while figure(served_url, "vllm:num_requests_running") < 16 or replay.progress().n_messages < 100:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        begin_s = time.monotonic()
        replay.cancel("seen enough")
        result = replay.result(10)
        ended_s = time.monotonic() - begin_s
        while figure(served_url, "vllm:num_requests_running") + figure(served_url, "vllm:num_requests_waiting"):
            assert time.monotonic() < begin_s + 10
        idle_s = time.monotonic() - begin_s
    assert set(failures(result)) == {"cancelled: seen enough"} and result.cut_reason == "seen enough"
    assert sum(r.output_tokens for r in result.records) >= 100
    assert ended_s < 1.0
    assert idle_s < 2.0, "the server works off a step of a loaded machine first"


@pytest.mark.parametrize(
    ("trace", "extra", "text"),
    [
        (trace_of([0.0], LONGEST + 100, 5), {}, "HTTP 400: .*maximum"),
        (trace_of([0.0], 10, 5), {"temperature": -1}, "HTTP 400: .*temperature"),
    ],
)
def test_refusals_are_told_in_the_servers_words(
    served_url: str, trace: Trace, extra: dict[str, Any], text: str
) -> None:
    result = replayed(plan_for(served_url, trace, extra_body=extra))
    assert result.first_failure is not None
    assert re.match(text, result.first_failure), result.first_failure


def test_requests_that_cost_memory_are_replayed(served_url: str) -> None:  # case OOM-12
    for extra, n in (
        ({"logprobs": 5, "top_p": 0.9, "temperature": 0.8}, 1),
        ({"prompt_logprobs": 1}, 1),
        ({"n": 3, "temperature": 0.8}, 3),
    ):
        result = replayed(plan_for(served_url, trace_of([0.0, 0.1], 60, 8), extra_body=extra))
        assert failures(result) == [None, None], extra
        assert [r.output_tokens for r in result.records] == [8 * n] * 2


def test_several_tokens_in_a_message_are_counted(served_url: str) -> None:  # case DIAG-08
    (record,) = replayed(plan_for(served_url, trace_of([0.0], 60, 30), extra_body={"stream_interval": 4})).records
    assert record.failure is None and record.output_tokens == 30
    assert record.tokens_per_message is not None and record.tokens_per_message.max() == 4


def test_text_goes_through_the_chat_endpoint(served_url: str) -> None:
    result = replayed(plan_for(served_url, trace_of([0.0, 0.2], 30, 12), style="chat"))
    for record in result.records:
        assert record.failure is None and 1 <= record.output_tokens <= 12 and record.prompt_tokens > 30


@pytest.mark.quiet
def test_the_client_and_vllms_own_measure_the_same(
    served_url: str, vllm_python: str, model: Path, tmp_path: Path
) -> None:
    """The same window on the same server: ours, theirs, ours again, at a rate that builds no queue. ITL as a mean: where
    its loop is late vLLM's client reads several messages at once, and the median of its gaps is then about 0. A round
    in which the machine was busy with something else is done again, at most twice."""
    rng = np.random.default_rng(3)
    n = 30
    trace = trace_of(np.sort(rng.uniform(0.0, 15.0, n)), rng.integers(64, 320, n) // 32 * 32, rng.integers(20, 60, n))
    for number in range(3):
        seeds = iter(range(1 + 3 * number, 4 + 3 * number))
        ours = [of_records(replayed(plan_for(served_url, trace, seed=next(seeds)))) for _ in range(2)]
        theirs = bench_serve(served_url, vllm_python, model, trace, tmp_path)
        ours.append(of_records(replayed(plan_for(served_url, trace, seed=next(seeds)))))
        print(ours, theirs)
        apart = disagreements(ours, theirs)
        if not apart:
            return
    raise AssertionError(apart)


def disagreements(ours: list[dict[str, float]], theirs: dict[str, float]) -> list[str]:
    found = []
    for name, their in theirs.items():
        mine = [figures[name] for figures in ours]
        if not min(mine) / MACHINE_NOISE <= their <= max(mine) * MACHINE_NOISE:
            found.append(f"{name}: ours {mine}, vllm bench serve {their}")
    return found


def of_records(result: ReplayResult) -> dict[str, float]:
    assert set(failures(result)) == {None}
    duration_s = result.end_s - min(r.sent_s for r in result.records)
    return {
        "ttft_ms": 1e3 * float(np.median([r.token_times_s[0] - r.sent_s for r in result.records])),
        "itl_ms": 1e3 * float(np.concatenate([r.gaps_s for r in result.records]).mean()),
        "tokens_per_s": sum(r.output_tokens for r in result.records) / duration_s,
    }


def bench_serve(url: str, python: str, model: Path, trace: Trace, folder: Path) -> dict[str, float]:
    rows = [
        {"timestamp": float(trace.arrival_s[i]), "input_length": int(trace.prompt_tokens[i]), "output_length": int(n),
         "hash_ids": [1000 * i + k for k in range(int(trace.prompt_tokens[i]) // 32)]}
        for i, n in enumerate(trace.output_tokens)
    ]  # fmt: skip
    (folder / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = f"""bench serve --backend openai --endpoint /v1/completions --base-url {url} --model {MODEL} --tokenizer {model}
        --dataset-name timed_trace --dataset-path {folder}/trace.jsonl --timed-trace-chunk-hash-size 32
        --timed-trace-sec-multiplier 1.0 --num-prompts {len(rows)} --disable-tqdm --ignore-eos --temperature 0
        --save-result --save-detailed --result-dir {folder} --result-filename result.json"""
    done = subprocess.run(
        [python, "-c", MAIN, *words.split()], env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((folder / "result.json").read_text())
    assert result["completed"] == len(rows) and result["output_lens"] == trace.output_tokens.tolist()
    return {
        "ttft_ms": result["median_ttft_ms"],
        "itl_ms": result["mean_itl_ms"],
        "tokens_per_s": result["output_throughput"],
    }
