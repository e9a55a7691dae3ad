"""What cannot be replayed is refused when the plan is made."""

from typing import Any

import numpy as np
import pytest

from tests.replay.traces import plan_of, target_of, trace_of

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("n_warmup", 3, "n_warmup 3"),
        ("time_limit_s", 0.0, "time_limit_s"),
        ("time_limit_s", float("nan"), "time_limit_s"),
        ("vocabulary", 12, "vocabulary of 12"),
        ("n_processes", 0, "n_processes"),
        ("seed", -1, "seed"),
        ("targets", (), "'default' needs exactly one target, has none"),
        ("targets", (target_of(URL), target_of(URL, instance="b")), r"has \['a', 'b'\]"),
    ],
)
def test_a_plan_names_what_is_wrong(field: str, value: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        plan_of(trace_of([0.0, 1.0]), **{"targets": (target_of(URL),), field: value})


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://h:1", "http://", "http://h:1/v1/completions", "http://h?x=1"])
def test_a_url_is_scheme_host_and_port(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        target_of(url)


@pytest.mark.parametrize("field", ["prompt", "max_tokens", "stream", "stream_options", "model", "cache_salt"])
def test_what_the_replay_sets_cannot_be_overridden(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        target_of(URL, extra_body={field: 1})


@pytest.mark.parametrize("n", [0, -1, 1.5, "2"])
def test_n_is_a_number_of_answers(n: object) -> None:
    with pytest.raises(ValueError, match="n must be"):
        target_of(URL, extra_body={"n": n})


def test_tenants_without_a_request_need_no_server() -> None:
    trace = trace_of([0.0, 1.0], tenants=("chat", "batch"), tenant=np.array([1, 1], np.int16))
    plan = plan_of(trace, target_of(URL, tenants=("batch",)))
    assert plan.target_of(0).instance == "a"
