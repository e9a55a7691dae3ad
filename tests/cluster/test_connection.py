"""Addresses, dead heads, room on a cluster, and badges: everything that is decided before a worker starts."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from optimizer.cluster.badge import Admission, gpu_mismatch, own_badge, strangeness
from optimizer.cluster.connection import check_runtime_env, fit_slots, probe
from optimizer.cluster.ray_executor import check_spec
from optimizer.cluster.slots import GpuClass
from optimizer.cluster.worker import check_lease
from optimizer.errors import Unavailable, UserError

A100_80 = GpuClass("NVIDIA A100-SXM4-80GB", 81920, 400)
A100_40 = GpuClass("NVIDIA A100-SXM4-40GB", 40960, 400)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture
def chatty_port() -> Iterator[int]:
    """Something that listens and is no Ray head."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_a_dead_head_is_refused_at_once(free_port: int) -> None:
    start_s = time.monotonic()
    with pytest.raises(Unavailable, match=rf"--ray-address 127\.0\.0\.1:{free_port}: no Ray head answers"):
        probe(f"127.0.0.1:{free_port}")
    assert time.monotonic() - start_s < 3


def test_a_head_that_accepts_and_never_answers_is_refused_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start_s = time.monotonic()
        with pytest.raises(Unavailable, match="no Ray head answers"):
            probe(f"127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - start_s < 3


def test_another_server_is_not_taken_for_a_ray_head(chatty_port: int) -> None:
    with pytest.raises(Unavailable, match="not a Ray head"):
        probe(f"127.0.0.1:{chatty_port}")


@pytest.mark.parametrize("address", ["ray://10.0.0.5:10001", "10.0.0.5", "10.0.0.5:ray", ":6379", "10.0.0.5:0", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="--ray-address"):
        probe(address)


def node(host: str, is_alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeManagerAddress": host, "Alive": is_alive, "Resources": resources}


NODES = [node("a", CPU=8, GPU=4), node("b", CPU=2, GPU=4), node("c", is_alive=False, CPU=64, GPU=8)]


@pytest.mark.parametrize(
    ("n_gpus", "asked", "slots"), [(1, None, 6), (4, None, 2), (3, None, 2), (0, None, 10), (1, 3, 3)]
)
def test_slots_never_span_nodes(n_gpus: int, asked: int | None, slots: int) -> None:
    assert fit_slots(NODES, n_gpus, asked, "a:6379") == slots


@pytest.mark.parametrize(("n_gpus", "asked", "said"), [(8, None, "room for 0"), (1, 7, r"room for 6 .*a: 4, b: 2")])
def test_what_does_not_fit_is_refused_before_it_waits_for_ever(n_gpus: int, asked: int | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fit_slots(NODES, n_gpus, asked, "a:6379")


@pytest.mark.parametrize(  # case RAY-01
    ("visible", "leased", "n_gpus", "said"),
    [
        ("", ["0"], 1, "CUDA_VISIBLE_DEVICES is ''"),
        (None, ["0"], 1, "CUDA_VISIBLE_DEVICES is None"),
        ("0", ["1"], 1, "CUDA_VISIBLE_DEVICES is '0' but Ray leased '1'"),
        ("0,1", ["0"], 1, "CUDA_VISIBLE_DEVICES is '0,1' but Ray leased '0'"),
        ("", [], 1, r"Ray leased 0 GPU\(s\) to a slot that owns 1; start the slot with num_gpus"),
    ],
)
def test_a_worker_that_sees_other_gpus_than_leased_is_refused(
    visible: str | None, leased: list[str], n_gpus: int, said: str
) -> None:
    with pytest.raises(Unavailable, match=said):
        check_lease(visible, leased, n_gpus)


def test_a_lease_that_holds_is_returned() -> None:
    assert check_lease("GPU-b,GPU-a", ["GPU-a", "GPU-b"], 2) == ("GPU-b", "GPU-a")


def test_a_job_that_sets_the_visible_gpus_is_refused() -> None:  # case RAY-01
    job = {"runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": "0"}}}
    with pytest.raises(UserError, match="runtime_env sets CUDA_VISIBLE_DEVICES='0'"):
        check_runtime_env({"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)})
    check_runtime_env({"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"env_vars": {"X": "1"}}})})
    check_runtime_env({"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": None})})
    check_runtime_env({})


@pytest.mark.parametrize("n_gpus", [0.5, -1, True])
def test_a_slot_owns_whole_gpus(n_gpus: object) -> None:  # case RAY-03
    class Spec:
        pass

    spec = Spec()
    spec.n_gpus = n_gpus  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="a slot owns whole GPUs"):
        check_spec(spec)


def test_the_same_code_is_no_stranger() -> None:
    assert strangeness(own_badge(), own_badge()) is None


def test_a_stranger_is_refused_with_both_named() -> None:
    mine = own_badge()
    other = replace(mine, host="node-7", identity=replace(mine.identity, version="0.0.9", package_hash="f" * 64))
    text = strangeness(other, mine)
    assert text is not None
    assert "node-7" in text and "0.0.9" in text and "ffffffffffff" in text
    assert mine.identity.package_hash[:12] in text and mine.identity.version in text


def test_one_version_number_over_different_code_is_still_a_stranger() -> None:
    mine = own_badge()
    other = replace(mine, identity=replace(mine.identity, package_hash="0" * 64))
    with pytest.raises(UserError, match="install the same wheel on every node"):
        Admission(mine, None, is_local=False, is_gpu_given=False).judge("ray-0", other)


def test_no_more_workers_are_let_in_than_wanted_and_a_lost_one_keeps_its_place() -> None:
    mine = own_badge()
    admission = Admission(mine, None, is_local=True, is_gpu_given=False, n_places=2)
    judged = [admission.judge(f"ray-{i}", mine) for i in (0, 1, 2, 1)]
    assert judged == [None, None, "not needed", None]


def test_on_our_own_machine_the_place_of_the_code_decides() -> None:
    mine = own_badge()
    edited = replace(mine, identity=replace(mine.identity, package_hash="0" * 64))
    assert strangeness(edited, mine, is_local=True) is None
    elsewhere = replace(edited, identity=replace(edited.identity, location="/opt/other"))
    assert "/opt/other" in str(strangeness(elsewhere, mine, is_local=True))


def test_another_python_is_refused_by_its_minor_version() -> None:
    mine = replace(own_badge(), python="3.11.7")
    assert strangeness(replace(mine, python="3.11.9"), mine) is None
    assert "3.12.1" in str(strangeness(replace(mine, python="3.12.1"), mine))


def test_other_gpus_stay_idle_when_the_study_names_its_kind() -> None:  # case GPU-02
    mine = own_badge()
    admission = Admission(mine, A100_80, is_local=False, is_gpu_given=True)
    assert admission.judge("ray-0", replace(mine, gpus=(A100_80,))) is None
    assert "81920 MiB" in str(admission.judge("ray-0", replace(mine, gpus=(A100_40,))))
    assert "no GPU that nvidia-smi can tell" in str(admission.judge("ray-0", mine))


def test_unequal_gpus_end_a_study_that_names_none() -> None:  # case GPU-02
    mine = own_badge()
    admission = Admission(mine, None, is_local=False, is_gpu_given=False)
    assert admission.judge("ray-0", replace(mine, gpus=(A100_80,))) is None
    with pytest.raises(UserError, match=r"A100-SXM4-80GB .* has NVIDIA A100-SXM4-40GB"):
        admission.judge("ray-0", replace(mine, gpus=(A100_40,)))


def test_one_wrong_card_of_several_is_enough() -> None:
    mine = own_badge()
    assert gpu_mismatch(replace(mine, gpus=(A100_80, A100_40)), A100_80)
