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

from optimizer.cluster.admission import Admission, card_mismatch, gpu_mismatch
from optimizer.cluster.badge import own_badge, strangeness
from optimizer.cluster.connection import check_runtime_env, fit_slots, probe
from optimizer.cluster.lease import check_lease, find_leased
from optimizer.cluster.ray_executor import check_spec
from optimizer.cluster.slots import Gpu, GpuClass
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


SLICES = (
    Gpu(0, "MIG-2222", GpuClass("NVIDIA H100 80GB HBM3", 20480, 700, "2g.20gb"), None, "GPU-1111"),
    Gpu(0, "MIG-3333", GpuClass("NVIDIA H100 80GB HBM3", 10240, 700, "1g.10gb"), None, "GPU-1111"),
    Gpu(1, "GPU-aaaa", A100_80, 4),
    Gpu(2, "GPU-aabb", A100_80, 4),
)


@pytest.mark.parametrize("name", ["0", "GPU-1111", "GPU-11"])
def test_a_lease_of_a_card_that_is_cut_is_refused(name: str) -> None:  # cases RAY-01, GPU-01
    said = f"Ray leased GPU '{name}', which stands for 2 MIG slices; .*CUDA_VISIBLE_DEVICES=MIG-2222,MIG-3333 ray start"
    with pytest.raises(Unavailable, match=said):
        find_leased(name, SLICES)


def test_a_lease_by_a_name_that_several_cards_have_is_refused() -> None:
    with pytest.raises(Unavailable, match=r"'GPU-aa', which stands for 2 GPUs"):
        find_leased("GPU-aa", SLICES)


@pytest.mark.parametrize(
    ("name", "uuid"),
    [("MIG-2222", "MIG-2222"), ("MIG-3", "MIG-3333"), ("1", "GPU-aaaa"), ("GPU-aaaa", "GPU-aaaa"), ("7", None)],
)
def test_a_lease_names_one_device(name: str, uuid: str | None) -> None:
    found = find_leased(name, SLICES)
    assert (found and found.uuid) == uuid


def test_a_card_cut_into_a_single_slice_is_that_slice() -> None:
    found = find_leased("0", SLICES[1:])
    assert found is not None and found.uuid == "MIG-3333"


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
    assert [admission.judge(f"ray-{i}", mine) for i in range(3)] == [None, None, None]
    judged = [admission.judge_engine(f"ray-{i}", mine, "vLLM 0.32.0") for i in (0, 1, 2, 1)]
    assert judged == [None, None, "not needed", None]
    assert admission.judge("ray-3", mine) == "not needed" and admission.judge("ray-1", mine) is None


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


L4 = GpuClass("NVIDIA L4", 23034, 72)
H100 = GpuClass("NVIDIA H100 80GB HBM3", 81559, 700)
H100_PCIE = GpuClass("NVIDIA H100 PCIe", 81559, 350)
OWN_CARD = GpuClass("NVIDIA Something New", 81559, 700)


def admission_of(**wanted: Any) -> Admission:
    return Admission(own_badge(), None, is_local=False, is_gpu_given=False, **wanted)


@pytest.mark.parametrize("kind", [L4, H100_PCIE, OWN_CARD, SLICES[0].kind])
def test_a_card_other_than_the_named_one_stays_idle(kind: GpuClass) -> None:  # case GPU-02
    admission = admission_of(gpu_name="H100-80")
    said = str(admission.judge("ray-0", replace(own_badge(), gpus=(kind,))))
    assert "this study runs on H100-80" in said and f"has {kind.text}" in said
    assert admission.judge("ray-1", replace(own_badge(), gpus=(H100,))) is None


def test_a_named_card_may_be_spelt_in_any_way_and_must_be_seen() -> None:
    admission = admission_of(gpu_name="nvidia h100 80gb hbm3")
    assert admission.gpu_name == "H100-80" and admission.is_choosy
    assert "no GPU that nvidia-smi can tell" in str(admission.judge("ray-0", own_badge()))
    assert card_mismatch(replace(own_badge(), gpus=(H100, L4)), "H100-80")
    with pytest.raises(UserError, match="--gpu: unknown GPU 'H1000'"):
        admission_of(gpu_name="H1000")


def test_one_named_card_under_two_power_limits_ends_the_study() -> None:  # case GPU-02
    admission = admission_of(gpu_name="H100-80")
    assert admission.judge("ray-0", replace(own_badge(), gpus=(H100,))) is None
    with pytest.raises(UserError, match=r"700 W.* has .*500 W.*both are H100-80: give all of them one power limit"):
        admission.judge("ray-1", replace(own_badge(), gpus=(replace(H100, power_limit_w=500),)))


def test_another_engine_than_the_given_one_stays_idle_and_keeps_no_place() -> None:
    mine, admission = own_badge(), admission_of(engine_identity="vLLM 0.32.0", n_places=1)
    assert admission.is_choosy
    said = str(admission.judge_engine("ray-0", mine, "vLLM 0.31.1"))
    assert "this study measures vLLM 0.32.0" in said and f"{mine.host} (pid {mine.pid}) has vLLM 0.31.1" in said
    assert admission.judge_engine("ray-1", mine, "vLLM 0.32.0") is None


def test_unequal_engines_end_a_study_that_was_given_none() -> None:
    mine, admission = own_badge(), admission_of()
    assert admission.judge_engine("ray-0", mine, "vLLM 0.32.0") is None
    assert admission.engine_identity == "vLLM 0.32.0" and not admission.is_choosy
    assert admission.judge_engine("ray-1", mine, "vLLM 0.32.0") is None
    with pytest.raises(UserError, match=r"measures vLLM 0\.32\.0, .* has vLLM 0\.32\.1"):
        admission.judge_engine("ray-2", mine, "vLLM 0.32.1")
