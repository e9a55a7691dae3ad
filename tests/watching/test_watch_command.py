"""`python -m optimizer.diagnose --url`, against a server that answers as a recorded one did."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from optimizer.cli import run_main
from optimizer.diagnose import main
from optimizer.watching.server import server_url
from tests.watching.replayed_server import PAGES, ReplayedServer, replayed, with_value

SHORT = ("--minutes", "0.02")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplayedServer]:
    """Read every 0.1 s instead of every second."""
    monkeypatch.setattr("optimizer.watching.watch.PERIOD_S", 0.1)
    monkeypatch.setattr("optimizer.watching.watch.LEAST_SEEN_S", 0.3)
    monkeypatch.setattr("optimizer.diagnose.LEAST_MINUTES", 0.01)
    with replayed() as served:
        yield served


def run(*argv: str) -> int:
    return run_main(main, list(argv))


def diagnosed(server: ReplayedServer, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, object]]:
    code = run("--url", server.url, *SHORT, "--json", *argv)
    return code, json.loads(capsys.readouterr().out)


def test_a_server_at_work(server: ReplayedServer, capsys: pytest.CaptureFixture[str]) -> None:
    code = run("--url", f"{server.url}/v1/", *SHORT)
    out, progress = capsys.readouterr()
    assert code == 0 and "healthy (vLLM 0.32.0, tiny" in out
    assert "1. compute or memory bandwidth?" in out and "5. faster or steadier?" in out and "preemption" in out
    assert "its processes cannot be seen" in out, "this test's own process listens there, and is no vLLM"
    assert progress.startswith("watching 0 of 1 s"), progress
    assert server.n_other == 0, "it is asked for its metrics, version and model names, and for nothing else"


def test_it_is_told_for_programs_too(server: ReplayedServer, capsys: pytest.CaptureFixture[str]) -> None:
    code, row = diagnosed(server, capsys)
    assert code == 0 and row["health"] == "healthy" and row["is_idle"] is False
    [engine] = row["engines"].values()  # type: ignore[attr-defined]
    assert [q["question"] for q in engine["questions"]] == [1, 2, 3, 4, 5]
    assert engine["seen"]["n_finished"] > 0 and engine["seen"]["running"]["most"] >= 8
    assert row["arguments"]["block_size"] == 32 and engine["seen"]["kv_tokens"] == 32768  # type: ignore[index]


def test_an_idle_server_is_not_called_healthy(server: ReplayedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.pages = [PAGES[0]]
    assert run("--url", server.url, *SHORT) == 0
    assert ": idle (" in capsys.readouterr().out
    _, row = diagnosed(server, capsys)
    assert row["health"] == "unknown" and row["is_idle"] is True


def test_one_that_dies_is_broken(
    server: ReplayedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimizer.watching.watch.GONE_AFTER_S", 0.5)
    server.dies_after = 4
    code, row = diagnosed(server, capsys, "--minutes", "0.05")
    assert code == 4 and row["health"] == "broken"
    assert "it stopped answering after" in row["signs"][0]["text"]  # type: ignore[index]


def test_one_that_hangs_is_broken_though_it_answers(  # case DIAG-16
    server: ReplayedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimizer.watching.watch.HANG_AFTER_S", 0.5)
    server.pages = [PAGES[5]]
    code, row = diagnosed(server, capsys, "--minutes", "0.3")
    assert code == 4 and "it hangs: 16 request(s) running and no token" in row["signs"][0]["text"]  # type: ignore[index]


def test_a_restart_is_seen(server: ReplayedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.pages = [*[PAGES[4]] * 6, PAGES[5], with_value(PAGES[0], "vllm:generation_tokens_total", 3)]
    code, row = diagnosed(server, capsys)
    assert code == 4 and "it was restarted" in row["signs"][0]["text"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "labels", "words", "code"),
    [
        ("vllm:request_success_total", {"finished_reason": "abort"}, "were given up by their clients", 1),
        ("vllm:admission_rejections_total", {"reason": "max_num_queued_reqs"}, "were refused at admission", 1),
    ],
)
def test_requests_that_were_lost(
    server: ReplayedServer, capsys: pytest.CaptureFixture[str], name: str, labels: dict[str, str], words: str, code: int
) -> None:
    server.edit = lambda text, number: with_value(text, name, 7 * number, **labels)
    found, row = diagnosed(server, capsys)
    assert found == code and words in row["signs"][0]["text"]  # type: ignore[index]


def test_failed_requests_are_no_healthy_server(server: ReplayedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.edit = lambda text, n: with_value(text, "vllm:request_success_total", 9 * n, finished_reason="error")
    code, row = diagnosed(server, capsys)
    assert code == 4 and row["health"] == "broken"


def test_a_known_model_and_card_give_a_roofline(server: ReplayedServer, capsys: pytest.CaptureFixture[str]) -> None:
    code, row = diagnosed(server, capsys, "--model", "Llama-3.1-8B", "--gpu", "A100-80")
    [engine] = row["engines"].values()  # type: ignore[attr-defined]
    assert code == 0 and row["gpu"] == "A100-80"
    assert engine["questions"][0]["verdict"] != "unknown"


def test_two_engines_are_told_apart(server: ReplayedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.edit = lambda text, n: text + PAGES[0].replace('engine="0"', 'engine="1"')
    code, row = diagnosed(server, capsys)
    names = list(row["engines"])  # type: ignore[call-overload]
    assert names == [f"{server.url} engine 0", f"{server.url} engine 1"], "the one with most to do first"
    assert "not balanced" in row["signs"][0]["text"] and code in (0, 1)  # type: ignore[index]


def test_a_key_is_sent_and_never_shown(
    server: ReplayedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "sk-very-secret-0123456789"
    assert run("--url", server.url, *SHORT) == 3
    assert "name the environment variable that holds its key with --api-key-variable" in capsys.readouterr().err
    monkeypatch.setenv("THE_KEY", server.key)
    code, row = diagnosed(server, capsys, "--api-key-variable", "THE_KEY")
    assert code == 0 and server.key not in json.dumps(row)


def test_ctrl_c_keeps_what_was_seen(
    server: ReplayedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tick(self: object, gone_s: float, newest: object) -> None:
        if gone_s > 0.6:
            raise KeyboardInterrupt

    monkeypatch.setattr("optimizer.watching.progress.WatchProgress.__call__", tick)
    assert run("--url", server.url, "--minutes", "5") == 0
    assert "broken off" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "has no vLLM metrics; start the server without --disable-log-stats"),
        ('sglang:num_running_reqs{a="b"} 1\n', "is a server of SGLang, not of vLLM"),
        ("<html>404</html>", "has no vLLM metrics"),
        ("vllm:num_requests_running{ 1 2 3\n", "is no vLLM server"),
    ],
)
def test_what_is_no_vllm_server_is_refused(
    server: ReplayedServer, capsys: pytest.CaptureFixture[str], body: str, words: str
) -> None:
    server.pages = [body]
    assert run("--url", server.url, *SHORT) == 3
    assert words in capsys.readouterr().err


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert run("--url", f"http://127.0.0.1:{port}") == 3
    err = capsys.readouterr().err
    assert "no vLLM server answers there" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--url", "localhost:8000"), "--url localhost:8000: give the server's address as http://HOST:PORT"),
        (("--url", "http://a:pw@host:1"), "the address holds a password"),
        (("--url", "http://h:99999"), "give the server's address"),
        (("--url", "http://127.0.0.1:1", "--minutes", "0"), "--minutes 0: give 0.05 to 1440"),
        (("--url", "http://127.0.0.1:1", "--minutes", "nan"), "--minutes nan: give 0.05 to 1440"),
        (("--url", "http://127.0.0.1:1", "--minutes", "x"), "--minutes: invalid float value: 'x'"),
        (("--url", "http://127.0.0.1:1", "--api-key-variable", "NO_SUCH"), "no environment variable of that name"),
        (("--url", "http://127.0.0.1:1", "--trial", "3"), "--trial 3: say of which study"),
        (("--log", "x", "--minutes", "3"), "--minutes: belongs to --url"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], words: str) -> None:
    assert run(*argv) == 2
    err = capsys.readouterr().err
    assert words in err and len(err.splitlines()) == 1


def test_an_unknown_card_or_model_is_refused_before_watching(
    server: ReplayedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--url", server.url, "--gpu", "H1000") == 2
    assert "--gpu: unknown GPU 'H1000'" in capsys.readouterr().err
    assert run("--url", server.url, "--model", "/no/such") == 2
    assert "--model /no/such" in capsys.readouterr().err


def test_addresses_as_people_write_them() -> None:
    assert (
        server_url("http://h:1/metrics") == server_url(" http://h:1/v1/ ") == server_url("http://h:1") == "http://h:1"
    )
    assert server_url("https://gate/way/v1") == "https://gate/way"


# ---- found by somebody who tried to break it --------------------------------------------------------------------


def test_one_that_freezes_while_it_is_watched_is_not_healthy(  # case DIAG-16
    server: ReplayedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimizer.watching.signs.SILENT_S", 0.4)
    server.pages = [*PAGES[:6], PAGES[5]]
    code, row = diagnosed(server, capsys, "--minutes", "0.03")
    assert code == 1 and "no sign of work in the last" in row["signs"][0]["text"]  # type: ignore[index]
    [engine] = row["engines"].values()  # type: ignore[attr-defined]
    assert engine["changes"] == [], "an engine that hangs needs no other parameters"


def test_one_failed_reading_at_the_end_loses_nothing(
    server: ReplayedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.fails_at = frozenset(range(5, 100, 2))
    code, row = diagnosed(server, capsys)
    [engine] = row["engines"].values()  # type: ignore[attr-defined]
    assert engine["seen"]["n_finished"] > 0 and engine["seen"]["ttft_ms"]["mean"] > 0
    assert code == 1 and "readings of /metrics failed" in row["signs"][0]["text"], row["signs"]  # type: ignore[index]


def test_rates_are_over_the_time_between_the_readings(
    server: ReplayedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """One page after another, each 0.1 s after the last: ten requests a page are a hundred a second."""
    name, labels = "vllm:request_success_total", {"finished_reason": "length"}
    server.edit = lambda text, number: with_value(text, name, 10 * number, **labels)
    server.pages = [PAGES[5]] * 1000
    _, row = diagnosed(server, capsys)
    [engine] = row["engines"].values()  # type: ignore[attr-defined]
    assert engine["seen"]["finished_per_s"] == pytest.approx(100, rel=0.2)


def test_two_servers_behind_one_address_are_refused(server: ReplayedServer, capsys: pytest.CaptureFixture[str]) -> None:
    other = with_value(PAGES[3], "vllm:generation_tokens_total", 9)
    server.pages = [PAGES[3], other] * 200
    assert run("--url", server.url, *SHORT) == 3
    assert "several servers answer there (a load balancer?)" in capsys.readouterr().err


def test_an_answer_that_never_ends_does_not_hold_the_watch_up(
    server: ReplayedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimizer.watching.watch.ANSWER_WITHIN_S", 0.3)
    monkeypatch.setattr("optimizer.watching.watch.GONE_AFTER_S", 0.6)
    server.endless = True
    code, row = diagnosed(server, capsys, "--minutes", "0.2")
    assert code == 4 and "it stopped answering" in row["signs"][0]["text"] and row["is_idle"] is False  # type: ignore[index]


def test_what_a_server_says_of_itself_moves_no_cursor(
    server: ReplayedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.version = "0.32.0\x1b[2J\n127.0.0.1: healthy \u202e"
    assert run("--url", server.url, *SHORT) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and not any(x.startswith("127") for x in out.splitlines())


def test_a_closed_or_full_stderr_loses_no_diagnosis(server: ReplayedServer) -> None:
    code = (
        f"from optimizer.diagnose import main; raise SystemExit(main(['--url', '{server.url}', '--minutes', '0.05']))"
    )
    for closing in ("2>&-", "2>/dev/full"):
        done = subprocess.run(
            ["bash", "-c", f'"$0" -c "$1" {closing}', sys.executable, code], capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0 and ": healthy" in done.stdout) or ": idle" in done.stdout, done
