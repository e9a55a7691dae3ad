"""Bad input, from the command line down to a row of a trace: one clear line, no study, no traceback, exit 2 or 3."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from optimizer.study.names import MAX_NAME_CHARS
from tests.integration.conftest import Ran, Run
from tests.small_study import azure_rows, traffic, write_profile

LIMITS = "limits:\n  - {metric: steady_preemptions_per_request, at_most: 0.05}\n"


def refused(ran: Ran, *parts: str, code: int = 2) -> None:
    assert ran.code == code, ran.out + ran.err
    assert ran.error.startswith("error: ") and "Traceback" not in ran.err
    for part in parts:
        assert part in ran.error, ran.error
    assert not (ran.folder / "studies").exists(), "no study is left behind"
    assert ran.out == "", "nothing is started before everything is checked"


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--profile", "nosuch"], ["--profile nosuch: no such profile; shipped are chat, throughput, long-context"]),
        (["--profile", "nosuch.yaml"], ["--profile nosuch.yaml: cannot be read: No such file"]),
        (["--study", ""], ["--study: the name is empty"]),
        (["--study", "a\nb"], ["--study: control character U+000A at position 2"]),
        (["--study", "x" * (MAX_NAME_CHARS + 1)], [f"--study: the name has {MAX_NAME_CHARS + 1} characters; at most"]),
        (["--n-trials", "0"], ["--n-trials 0: give 1 to 100000"]),
        (["--model", "nosuch"], ["--model: unknown model 'nosuch'", "a directory with a config.json"]),
        (["--gpu", "X100"], ["--gpu: unknown GPU 'X100'; did you mean H100-80"]),
        (["--storage", "nosuch"], ["--storage 'nosuch': not a storage URL; e.g. sqlite:///study.db"]),
        (["--storage", "foo://bar"], ["--storage foo://bar: not a storage URL that Optuna knows"]),
        (["--storage", "sqlite:////nonexistent/x.db"], ["the folder /nonexistent does not exist; make it first"]),
        (["--rate", "1e9"], ["--rate: rate 1e+09 req/s is 192,461,514 x the trace's 5.2; at most 10000 x"]),
        (["--slo", "ttft_p99_ms<=500ms"], ["--slo: SLO 'ttft_p99_ms<=500ms': '500ms' is not a number"]),
        (["--set", "gpu_memory_utilization=0,9"], ["--set gpu_memory_utilization: '0,9' is not allowed (write 0.9"]),
        (["--set", "gpu_memory_utilization=90"], ["'90' is not allowed (a share: write 0.9 for 90 %); allowed: a number"]),
        (["--set", "max_num_seqs=-1"], ["--set max_num_seqs: '-1' is not allowed; allowed: a whole number, 1 <= value"]),
        (["--range", "max_num_seqs=64:8"], ["--range max_num_seqs: min 64 is above max 8; swap them"]),
        (["--choices", "max_num_seqs=a,b"], ["--choices max_num_seqs: 'a' is not allowed"]),
        (["--add", "nosuchflag=1,2"], ["nosuchflag", "the simulator has no model of it"]),
        (["--max-model-len", "10"], ["2,500 of 2,500 requests cannot be served at max_model_len 10", "needs 14,089"]),
        (["--max-bad-rows", "-1"], ["--max-bad-rows -1: expected 0 or more"]),
        (["--current", "nosuch.yaml"], ["nosuch.yaml: cannot be read: No such file"]),
        (["--trace", "nosuch.csv"], ["nosuch.csv: 0 usable requests: no such file"]),
        (["--trace", "."], [".", "directory"]),
        (["--trace", "chat=x.csv"], ["--trace chat=…: profile small has no tenant 'chat'; it has users"]),
        (["--nonsense"], ["unrecognized arguments: --nonsense; --help explains every flag"]),
    ],
)  # fmt: skip
def test_a_flag_with_a_wrong_value(argv: list[str], parts: list[str], small: Run) -> None:
    refused(small(*argv), *parts)


def test_no_gpu_no_cluster_no_driver_say_what_is_missing(small: Run, run: Run) -> None:  # case EDGE-18
    refused(small("--engine", "vllm"), "--engine vllm: no GPU found", "nvidia-smi", "use --engine simulator", code=3)
    profile = ("--profile", "small.yaml")
    refused(run(*profile, "--ray-address", "127.0.0.1:1"), "--ray-address 127.0.0.1:1: no Ray head answers", code=3)
    refused(run(*profile, "--ray-address", "garbage"), "--ray-address garbage: expected host:port")
    secret = small("--storage", "postgresql://u:PLACEHOLDER@127.0.0.1:1/db")
    refused(secret, "--storage postgresql://u:***@127.0.0.1:1/db: ", code=3)
    assert "PLACEHOLDER" not in secret.err


def test_a_place_that_cannot_be_written_or_holds_something_else(small: Run, folder: Path) -> None:
    assert "cannot write /dev/null/small-1: " in small("--studies", "/dev/null").error
    Path("mine/data").mkdir(parents=True)
    Path("mine/data/notes.txt").write_text("keep me")
    ran = small("--studies", "mine", "--study", "data")
    assert ran.code == 2 and "mine/data: the folder holds other files and no study" in ran.error
    Path("mine/file").write_text("")
    assert (
        "mine/file: a file is where the study's folder should be" in small("--studies", "mine", "--study", "file").error
    )
    assert Path("mine/data/notes.txt").read_text() == "keep me"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (("name: small\n", ""), None),
        (("why: a study for tests\n", ""), "why: this field is missing"),
        (("gpu: A10G-24", "gpus: A10G-24"), "gpu: this field is missing"),
        (("direction: maximize", "direction: up"), "objectives[0].direction: 'up' is not valid; expected one of maximize"),
        (("metric: steady_ttft_p99_ms", "metric: ttft"), "objectives[1].metric: 'ttft' is not valid"),
        (("at_most: 0.3", "at_most: lots"), "limits[1].at_most: 'lots' is not valid; expected a number"),
        (("at_most: 0.3", "at_most: .nan"), "limits[1].at_most: nan is not valid"),
        (("measured_requests: 380", "measured_requests: 3"), "load.measured_requests: 3 is not valid; expected a whole"),
        (("n_trials: 6", "n_trials: 0"), "budget.n_trials: 0 is not valid; expected a whole number from 1"),
        (("noise_repeats: 2", "noise_repeats: 1"), "budget.noise_repeats: 1 is not valid"),
        (("memory_span: 0.15", "memory_span: 1.5"), "space.memory_span: 1.5 is not valid"),
        (("memory_knob: kv_cache_memory_bytes", "memory_knob: both"), "space.memory_knob: 'both' is not valid"),
        (("space: {", "space: {nosuch: 1, "), "space.nosuch: unknown field"),
        (("trace: azure-conv", "trace: nosuch.csv"), "nosuch.csv"),
        (("model: Llama-3.1-8B", "model: nosuch"), "--model: unknown model 'nosuch'"),
        (("tenants:", "tenants: []\nx:"), "tenants: [] is not valid"),
        (("name: small", "name: [small"), "is not valid YAML"),
    ],
)  # fmt: skip
def test_a_profile_of_ones_own_names_the_field(
    change: tuple[str, str], part: str | None, small: Run, folder: Path
) -> None:
    write_profile(folder, change)
    if part is None:
        return
    refused(small(), part)


def csv(*rows: str) -> str:
    return "\n".join(("timestamp,input_length,output_length", *rows)) + "\n"


def good_rows(n: int = 400) -> list[str]:
    return [f"{t:.3f},{p},{o}" for t, p, o in zip(*traffic(n), strict=True)]


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.jsonl", b"", ["a.jsonl", "0 usable requests"]),
        ("b.csv", csv().encode(), ["b.csv", "0 usable requests"]),
        ("c.jsonl", b"\n\n", ["c.jsonl", "0 usable requests"]),
        ("d.csv.gz", b"", ["d.csv.gz", "0 usable requests"]),
        ("e.csv", b"who,what\n1,2\n", ["e.csv"]),
        ("f.bin", b"\x00\x01\x02\xff", ["f.bin"]),
        ("g.csv", csv("0,0,5", "1,-5,10", "2,100,0", "3,100.7,20", "nan,5,5").encode(), ["g.csv", "0 usable requests"]),
        ("h.csv", csv("0,100,50").encode(), ["h.csv", "1 usable request", "at least 200"]),
        ("i.csv", csv(*good_rows(50)).encode(), ["i.csv", "50 usable requests"]),
        ("j.csv.gz", b"not gzip", ["j.csv.gz"]),
    ],
)
def test_a_trace_without_enough_usable_requests(
    name: str, content: bytes, parts: list[str], small: Run, folder: Path
) -> None:  # cases EDGE-03, EDGE-05, EDGE-06
    Path(name).write_bytes(content)
    refused(small("--trace", name, "--time-unit", "s"), *parts)


def test_a_unit_that_is_in_doubt_is_asked_for_with_both_rates(small: Run, folder: Path) -> None:  # case EDGE-02
    arrival, prompt, output = traffic(400, rate_per_s=0.113)
    rows = (f"{3000 * round(t / 3)},{p},{o}" for t, p, o in zip(arrival, prompt, output, strict=True))
    Path("t.csv").write_text(csv(*rows))
    refused(small("--trace", "t.csv"), "t.csv", "--time-unit", "req/s")


def test_bad_rows_are_counted_with_their_lines_or_refused_when_strict(small: Run, folder: Path) -> None:
    """Cases EDGE-01, EDGE-10."""
    lines = [f'{{"timestamp":{int(1000 * t)},"input_length":{p},"output_length":{o}}}'
             for t, p, o in zip(*traffic(400), strict=True)]  # fmt: skip
    lines[3:3] = [
        "",
        '{"timestamp":1,"input_length":16,"output_length":5,}',
        "[]",
        '{"timestamp":"NaN","input_length":9,"output_length":5}',
    ]
    Path("t.jsonl").write_text("\n".join(lines))
    refused(small("--trace", "t.jsonl", "--strict", "--time-unit", "ms"), "t.jsonl", "line 5")
    refused(small("--trace", "t.jsonl", "--max-bad-rows", "2", "--time-unit", "ms"), "t.jsonl", "line 7")
    ran = small("--trace", "t.jsonl", "--n-trials", "1", "--time-unit", "ms")
    assert ran.code == 0
    assert "t.jsonl: 3 of 403 rows were rejected: 1 x not valid JSON" in ran.out
    assert "t.jsonl: rejected: line 5 (not valid JSON" in ran.out and "line 7 (timestamp is not finite" in ran.out


def test_only_one_token_answers(small: Run, folder: Path) -> None:  # case EDGE-03
    arrival, prompt, output = traffic(400)
    Path("t.csv.gz").write_bytes(gzip.compress(azure_rows(arrival, prompt, np.ones_like(output)).encode()))
    refused(small("--trace", "t.csv.gz"), "t.csv.gz: every output is 1 token", "choose objectives without ITL")


def test_a_model_directory_that_is_an_adapter_or_none(small: Run, folder: Path) -> None:  # case MODEL-01
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    refused(small("--model", "./adapter"), "this is a LoRA adapter for org/base")
    Path("empty").mkdir()
    refused(small("--model", "./empty"), "empty", "config.json")
    Path("empty/config.json").write_text("{")
    refused(small("--model", "./empty"), "config.json")
    Path("empty/config.json").write_text(json.dumps({"model_type": "martian"}))
    refused(small("--model", "./empty"), "martian")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "serve.yaml: is empty"),
        ("- a\n", "serve.yaml line 1: holds a list"),
        ("max-num-seqs: 1.5\n", "max-num-seqs"),
        ("gpu-memory-utilization: 90\n", "gpu"),
        ("max-num-seqs: 512\nmax-num-batched-tokens: 256\n", "a step must hold one token of every running sequence"),
    ],
)
def test_a_current_configuration_that_vllm_would_refuse(text: str, part: str, small: Run, folder: Path) -> None:
    Path("serve.yaml").write_text(text)  # cases CFG-01, CFG-04
    refused(small("--current", "serve.yaml"), part)


def test_no_reference_at_all_leaves_no_study(small: Run, folder: Path) -> None:
    write_profile(
        folder,
        ("{metric: steady_itl_p99_ms, direction: minimize}", "{metric: steady_failed_share, direction: minimize}"),
    )
    ran = small()
    assert ran.code == 2 and "make it a limit instead of an objective" in ran.error
    assert not (folder / "studies").exists()


def test_a_damaged_study_is_named(small: Run, folder: Path) -> None:
    assert small("--study", "s", "--n-trials", "1").code == 0
    manifest = Path("studies/s/manifest.json")
    whole = manifest.read_text()
    manifest.write_text(whole[:50])
    assert "studies/s/manifest.json: not a study's manifest" in small("--study", "s", "--resume").error
    manifest.write_text(whole)
    next(Path("studies/s/trials").glob("*/run-1/samples.npz")).write_bytes(b"")
    ran = small("--study", "s", "--n-trials", "1", "--resume")
    assert ran.code == 2 and "the stored run is damaged" in ran.error and "delete this folder and --resume" in ran.error
