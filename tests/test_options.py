"""The command line as checked values: what is refused, in which words, and what the words become."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from optimizer.errors import UserError
from optimizer.options import SessionOptions, read_options
from optimizer.run import parser


def options(*argv: str) -> SessionOptions:
    return read_options(parser().parse_args(argv))


def test_nothing_given_is_the_chat_profile_with_everything_found() -> None:
    found = options()
    assert found.setup.profile == "chat" and found.study is None and found.studies == Path("studies")
    assert (found.engine, found.sampler, found.noise, found.setup.seed) == ("auto", "tpe", 1.0, 0)
    assert found.rate_per_s is None and not found.setup.is_recorded_rate
    assert found.n_workers is None and not found.is_resume and not found.is_json
    assert found.setup.traffic.traces == {} and found.setup.current == {} and found.setup.overrides == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("recorded", (True, None)), ("2", (False, 2.0)), ("0.05", (False, 0.05)), ("1e2", (False, 100.0))],
)
def test_a_rate_is_a_number_or_as_recorded(text: str, expected: tuple[bool, float | None]) -> None:
    found = options("--rate", text)  # case TOOL-06: far below one request a second, too
    assert (found.setup.is_recorded_rate, found.rate_per_s) == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rate", "0"], "--rate 0: give requests per second, at least 1e-05, or `recorded`"),
        (["--rate", "-1"], "--rate -1: "),
        (["--rate", "nan"], "--rate nan: "),
        (["--rate", "inf"], "--rate inf: "),
        (["--rate", "0,5"], "--rate 0,5: "),
        (["--rate", "1e-9"], "--rate 1e-9: "),
        (["--rate", "Recorded"], "--rate Recorded: "),
        (["--workers", "-1"], "--workers -1: give 0 (inline) or more"),
        (["--seed", "-1"], "--seed -1: give a whole number from 0 to 4294967295"),
        (["--seed", str(2**32)], "--seed 4294967296: "),
        (["--noise", "-0.1"], "--noise -0.1: give a scale from 0 (off) to 10"),
        (["--noise", "nan"], "--noise nan: "),
        (["--noise", "11"], "--noise 11: "),
        (["--gpu-price", "0"], "--gpu-price 0: give the price of one GPU hour, above 0"),
        (["--gpu-price", "inf"], "--gpu-price inf: "),
        (["--gpus-per-server", "0"], "--gpus-per-server 0: give at least 1"),
        (["--max-model-len", "1"], "--max-model-len 1: give at least 2 tokens"),
        (["--model", ""], "--model: the name is empty"),
        (["--gpu", "  "], "--gpu: the name is empty"),
        (["--trace", ""], "--trace : the file's name is empty"),
        (["--trace", "chat="], "--trace chat=: the file's name is empty"),
        (["--trace", "a.csv", "--trace", "b.csv"], "--trace b.csv: given twice for everything"),
        (["--trace", "chat=a", "--trace", "chat=b"], "--trace chat=b: given twice for chat"),
        (["--current", "x.yaml", "--current", "y.yaml"], "--current y.yaml: given twice for everything"),
        (["--model-variant", "fp8"], "--model-variant fp8: write --model-variant NAME=DIR"),
        (["--model-variant", "=x"], "--model-variant =x: write"),
        (["--set", "max_num_seqs"], "--set 'max_num_seqs': write --set FLAG=VALUE"),
        (["--set", "max_num_seqs=0"], "--set max_num_seqs: '0' is not allowed; allowed: a whole number, 1 <= value"),
        (["--space", "nosuch.yaml"], "--space nosuch.yaml: cannot be read: No such file or directory"),
        (["--advanced", ","], "--advanced ,: no name is given"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_flag(argv: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        options(*argv)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--n-trials", "1e3"], "--n-trials: invalid int value: '1e3'; --help explains every flag"),
        (["--workers", "1.5"], "--workers: invalid int value: '1.5'"),
        (["--gpu-price", "$2"], "--gpu-price: invalid float value: '$2'"),
        (["--engine", "tensorrt"], "--engine: invalid choice: 'tensorrt'"),
        (["--sampler", "nsga2"], "--sampler: invalid choice: 'nsga2'"),
        (["--time-unit", "h"], "--time-unit: invalid choice: 'h'"),
        (["--gpu-sharing", "mps2"], "--gpu-sharing: invalid choice: 'mps2'"),
        (["--confirm", "all"], "--confirm: invalid choice: 'all'"),
        (["--n-trial", "5"], "unrecognized arguments: --n-trial 5"),
        (["chat"], "unrecognized arguments: chat"),
        (["--study"], "--study: expected one argument"),
    ],
)
def test_what_argparse_refuses_is_one_line_too(argv: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parser().parse_args(argv)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_files_of_tenants_and_instances_and_paths_with_an_equals_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.csv").write_text("")
    found = options("--trace", "chat=x/y.csv", "--trace", "a=b.csv", "--current", "./q=1/serve.yaml")
    assert found.setup.traffic.traces == {"chat": "x/y.csv", "": "a=b.csv"}
    assert found.setup.current == {"": "./q=1/serve.yaml"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_num_seqs: {min: 8, max: 64}\n", {"max_num_seqs": {"min": 8, "max": 64}}),
        ("space:\n  watermark: [0, 0.05]\n", {"watermark": [0, 0.05]}),
    ],
)
def test_a_space_file_is_a_mapping_alone_or_under_space(text: str, expected: object, tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(text)
    assert options("--space", str(file)).setup.space_file == (str(file), expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a mapping of parameter names, got nothing"),
        (b"- a\n", "expected a mapping of parameter names, got list"),
        (b"a: [1\n", "is not valid YAML (line 2)"),
        (b"\xff\xfe\x00", "is not valid YAML"),
        (b"just words", "expected a mapping of parameter names, got str"),
        (b"space:\n", "expected a mapping of parameter names, got nothing"),
    ],
)
def test_a_space_file_that_is_none_is_refused_with_its_name(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        options("--space", str(file))
    assert str(caught.value) == f"--space {file}: {message}"


def test_lists_and_pairs() -> None:
    found = options("--advanced", "enable_prefix_caching, kv_cache_dtype", "--model-variant", "fp8=/m/fp8",
                    "--slo", "ttft_p99_ms<=500", "--slo", "itl_p99_ms<=50")  # fmt: skip
    assert found.setup.advanced == ("enable_prefix_caching", "kv_cache_dtype")
    assert found.setup.variants == {"fp8": "/m/fp8"}
    assert found.setup.slos == ("ttft_p99_ms<=500", "itl_p99_ms<=50")


def test_what_a_real_engine_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    found = options("--vllm-python", str(python), "--smoke", "--confirm", "none", "--gpu-sharing", "mig",
                    "--attach", "chat=http://127.0.0.1:8000/v1/", "--attach", "https://host.example", "--attach-anyway")  # fmt: skip
    assert found.vllm_python == str(python), "a link into a virtual environment is not followed"
    assert found.is_smoke and found.setup.is_smoke and found.setup.sharing == "mig"
    assert found.attach == {"chat": "http://127.0.0.1:8000", "": "https://host.example"}
    assert found.is_attach_insisting
    assert found.settings() == {"smoke": True, "attach": found.attach, "confirm": "none"}
    plain = options()
    assert (plain.vllm_python, plain.attach, plain.is_smoke, plain.confirm) == (None, {}, False, None)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--vllm-python", "/no/python"], "--vllm-python /no/python: is not there; give the Python of"),
        (["--vllm-python", "/etc"], "--vllm-python /etc: is no program"),
        (["--attach", "localhost:8000"], "--attach localhost:8000: give http://HOST:PORT"),
        (["--attach", "http://"], "--attach http://: give http://HOST:PORT"),
        (["--attach", "http://h:99999"], "--attach http://h:99999: give http://HOST:PORT"),
        (["--attach", "ftp://h:1"], "--attach ftp://h:1: give http://HOST:PORT"),
        (["--attach", "http://me:secret@h:1"], "--attach: the URL holds a password"),
        (["--attach", "http://h:1", "--attach", "http://h:2"], "--attach http://h:2: given twice for everything"),
        (["--attach", "http://h:1", "--engine", "simulator"], "--attach: a running server is measured, not simulated"),
        (["--attach", "http://h:1", "--workers", "2"], "--workers 2: with --attach there is one server to measure"),
        (["--attach-anyway"], "--attach-anyway: there is no --attach URL"),
    ],
)
def test_what_a_real_engine_cannot_be_told(argv: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        options(*argv)
    assert str(caught.value).startswith(message)
    assert "secret@" not in str(caught.value)


def test_what_an_attached_server_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "x")
    found = options("--attach", "http://h:8000", "--attach-key-variable", "MY_KEY")
    assert found.attach == {"": "http://h:8000"} and found.attach_key_variable == "MY_KEY"
    with pytest.raises(UserError, match="no environment variable of that name"):
        options("--attach", "http://h:8000", "--attach-key-variable", "NO_SUCH_KEY")
    with pytest.raises(UserError, match="must lie at the root"):
        options("--attach", "http://h:8000/llm")


def test_a_removed_flag_is_not_recommended(  # case PRE-05
) -> None:
    for flag in ("--set", "--add"):
        with pytest.raises(UserError, match=rf"{flag} swap_space: was removed in vLLM V1"):
            options(flag, "swap_space=4")


def test_a_python_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert options("--vllm-python", "./python").vllm_python == str(tmp_path / "python")
