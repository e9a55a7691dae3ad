from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from optimizer.clock import VirtualClock
from optimizer.engines.vllm.devices import Devices, open_devices
from optimizer.engines.vllm.nvml import NvmlDevice
from optimizer.errors import Unavailable
from tests.engines.vllm.recorded_nvml import GIB, Card, RecordedNvml

NOBODY = 4_194_305
"""Above Linux's largest process number: no such process."""


def devices(*cards: Card, sees_pids: bool = True, nvml: RecordedNvml | None = None) -> Devices:
    recorded = nvml or RecordedNvml(*cards)
    gpus = [NvmlDevice(recorded, c.uuid) for c in recorded.cards if c.parent is not None or len(recorded.cards) == 1]
    return Devices(gpus, VirtualClock(), sees_pids=sees_pids)


def card(**facts: object) -> Card:
    return Card("GPU-1111", **facts)  # type: ignore[arg-type]


H100 = Card("GPU-1111", total_bytes=80 * GIB, used_bytes=[40 * GIB], resident_percent=None, limit_milliwatts=700_000)
SLICES = (
    Card("MIG-2222", "NVIDIA H100 MIG 2g.20gb", 20 * GIB, [3 * GIB], resident_percent=99, pids=[7], parent=H100),
    Card("MIG-3333", "NVIDIA H100 MIG 1g.10gb", 10 * GIB, [GIB], parent=H100),
)


def test_memory_of_a_slice_is_the_slices_and_not_its_cards() -> None:  # case GPU-01
    found = devices(nvml=RecordedNvml(H100, *SLICES))
    assert [(f["uuid"], f["memory_bytes"], f["parent_uuid"]) for f in found.facts()] == [
        ("MIG-2222", 20 * GIB, "GPU-1111"),
        ("MIG-3333", 10 * GIB, "GPU-1111"),
    ]
    assert [(s.used_bytes, s.free_bytes) for s in found.sample(1.0, [7])] == [
        (3 * GIB, 17 * GIB),
        (GIB, 9 * GIB),
    ]
    assert found.free_bytes() == 9 * GIB
    assert found.sharing == "mig"


def test_what_a_slice_cannot_tell_is_unread() -> None:  # case GPU-01
    sample = devices(nvml=RecordedNvml(H100, *SLICES)).sample(1.0)[0]
    assert sample.kernel_resident_share is None
    assert sample.foreign_pids == (7,)


def test_identity_of_a_card_is_recorded() -> None:  # case GPU-02
    recorded = RecordedNvml(
        Card("GPU-a", "NVIDIA A100-SXM4-40GB", 40960 * 1024**2, limit_milliwatts=400_000), driver="550.54"
    )
    facts = devices(nvml=recorded).facts()[0]
    assert (facts["name"], facts["memory_bytes"], facts["power_limit_w"], facts["driver_version"]) == (
        "NVIDIA A100-SXM4-40GB",
        40960 * 1024**2,
        400.0,
        "550.54",
    )


def test_clocks_heat_and_throttling_are_recorded() -> None:  # case GPU-04
    found = devices(card(sm_mhz=[1965, 1815], celsius=[45, 83], throttle_mask=[0x1, 0x20 | 0x4], milliwatts=650_500))
    cold, hot = found.sample(1.0)[0], found.sample(2.0)[0]
    assert (cold.sm_clock_mhz, cold.temperature_c, cold.throttle_reasons) == (1965, 45, ())
    assert (hot.sm_clock_mhz, hot.temperature_c, hot.throttle_reasons) == (1815, 83, ("sw_power_cap", "sw_thermal"))
    assert hot.power_w == pytest.approx(650.5)


def test_a_driver_that_tells_nothing_gives_nothing() -> None:
    sample = devices(card(total_bytes=None, resident_percent=None, pids=None)).sample(1.0)[0]
    assert (sample.used_bytes, sample.free_bytes, sample.kernel_resident_share) == (None, None, None)
    assert (sample.sm_clock_mhz, sample.temperature_c, sample.power_w) == (None, None, None)
    assert (sample.throttle_reasons, sample.foreign_pids) == ((), ())


def test_processes_of_others_are_told_from_ours() -> None:  # case GPU-04
    found = devices(card(pids=[10, 11, 12], mps_pids=[13]))
    assert found.sample(1.0, [10, 11])[0].foreign_pids == (12, 13)


def test_what_a_process_of_others_holds_is_read_where_the_driver_tells() -> None:  # case OOM-22
    found = devices(card(pids=[4321, 7], pid_bytes={4321: 68_000 * 2**20, 7: GIB}))
    assert found.held_bytes((4321, 99)) == {4321: 68_000 * 2**20}
    assert devices(card(pids=[4321])).held_bytes((4321,)) == {}


def test_the_mps_server_is_nobodys_neighbour() -> None:
    recorded = RecordedNvml(card(pids=[10, 99]), names={99: "/usr/bin/nvidia-cuda-mps-server"})
    found = devices(nvml=recorded)
    assert found.sample(1.0, [10])[0].foreign_pids == ()
    assert found.sharing == "mps"


def test_in_a_container_only_who_was_there_before_us_is_known_to_be_foreign() -> None:
    gpu = card(pids=[500])
    found = devices(gpu, sees_pids=False)
    assert gpu.pids is not None
    gpu.pids.append(600)  # our server, by its number outside
    assert found.sample(1.0, [17])[0].foreign_pids == (500,)


# ---- sharing ---------------------------------------------------------------------------------------------------------


def mps_pipes(folder: Path, pid: int) -> None:
    (folder / "control").touch()
    (folder / "nvidia-cuda-mps-control.pid").write_text(f"{pid}\n")


def test_mps_is_seen_by_its_control_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    found = devices(card())
    assert found.sharing == "time-slice"
    mps_pipes(tmp_path, os.getpid())
    assert found.sharing == "mps"


def test_pipes_that_a_dead_daemon_left_are_no_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    mps_pipes(tmp_path, NOBODY)
    assert devices(card()).sharing == "time-slice"


# ---- release ---------------------------------------------------------------------------------------------------------


def test_memory_is_back_when_it_is_where_it_was_and_stays() -> None:  # case MULTI-02
    gpu = card(used_bytes=[60 * GIB, 60 * GIB, 31 * GIB, GIB, GIB + 1000, GIB])
    found = devices(gpu)
    release = found.wait_until_released({"GPU-1111": GIB}, 30.0, [])
    assert release.is_released
    assert gpu.used_bytes == [GIB]  # every reading was needed


def test_memory_that_comes_and_goes_is_not_back() -> None:  # case MULTI-02
    gpu = card(used_bytes=[GIB, GIB, 9 * GIB, GIB, GIB, 9 * GIB])
    release = devices(gpu).wait_until_released({"GPU-1111": GIB}, 2.0, [])
    assert not release.is_released
    assert release.used_bytes == {"GPU-1111": 9 * GIB}


def test_a_neighbour_that_stays_is_named() -> None:
    release = devices(card(used_bytes=[9 * GIB], pids=[321])).wait_until_released({"GPU-1111": GIB}, 1.0, [])
    assert (release.is_released, release.foreign_pids) == (False, (321,))
    assert "9.00 GiB in use" in release.text
    assert "321" in release.text


def test_unread_memory_is_never_proven_back() -> None:
    assert not devices(card(total_bytes=None)).wait_until_released({"GPU-1111": None}, 1.0, []).is_released


def test_a_process_of_ours_that_lives_holds_the_release_up() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        found = devices(card(used_bytes=[GIB]))
        release = found.wait_until_released({"GPU-1111": GIB}, 0.5, [sleeper.pid, NOBODY])
        assert (release.is_released, release.own_pids) == (False, (sleeper.pid,))
        assert not open_devices(()).wait_until_released({}, 0.1, [sleeper.pid]).is_released
    finally:
        sleeper.kill()
        sleeper.wait()
    assert found.wait_until_released({"GPU-1111": GIB}, 2.0, [sleeper.pid]).is_released


def test_waiting_ends_as_soon_as_the_process_does() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    killer = threading.Timer(0.3, sleeper.kill)
    killer.start()
    release = open_devices(()).wait_until_released({}, 20.0, [sleeper.pid])  # a zombie until somebody waits for it
    killer.join()
    sleeper.wait()
    assert release.is_released


def test_stability_is_waited_for_and_not_slept_for() -> None:  # case MULTI-02
    moving = card(used_bytes=[(10 + i) * GIB for i in range(400)])
    assert not devices(moving).wait_until_stable(for_s=3.0, within_s=20.0)
    settled = card(used_bytes=[30 * GIB, 12 * GIB, 2 * GIB])
    assert devices(settled).wait_until_stable(for_s=3.0, within_s=20.0)
    assert open_devices(()).wait_until_stable(for_s=3.0, within_s=20.0)


# ---- opening ---------------------------------------------------------------------------------------------------------


def test_without_a_gpu_the_hosts_memory_is_watched() -> None:
    found = open_devices(())
    sample = found.sample(2.0)[0]
    memory = psutil.virtual_memory()
    assert found.names == ("host",)
    assert found.facts() == ()
    assert found.sharing == "time-slice"
    assert sample.free_bytes is not None
    assert sample.used_bytes is not None
    assert abs(sample.free_bytes - memory.available) < 2 * GIB
    assert sample.used_bytes + sample.free_bytes == memory.total
    assert found.free_bytes() is not None


def test_a_gpu_that_is_not_there_is_refused_and_the_host_never_stands_in_for_it() -> None:
    with pytest.raises(Unavailable, match="GPU-nope"):
        open_devices(["GPU-nope"], nvml=RecordedNvml(card()))


def test_a_machine_without_a_driver_says_so() -> None:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(Unavailable, match="NVML cannot be used"):
            open_devices(["GPU-1111"])
    else:
        pytest.skip("this machine has an NVIDIA driver")


def test_an_index_names_a_card_too() -> None:
    assert open_devices(["0"], nvml=RecordedNvml(card())).names == ("GPU-1111",)


def test_the_recording_answers_what_pynvml_answers() -> None:
    import pynvml

    asked = [name for name in vars(RecordedNvml) if name.startswith("nvml")]
    assert len(asked) > 15
    for name in asked:
        real = list(inspect.signature(getattr(pynvml, name)).parameters)
        recorded = list(inspect.signature(getattr(RecordedNvml, name)).parameters)[1:]
        assert len(recorded) <= len(real), name
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_TEMPERATURE_GPU) == (1, 0)
