from __future__ import annotations

import json
import zipfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from objectives.measurement import (
    ClientReport,
    DeviceSample,
    EngineCounters,
    EngineSample,
    Measurement,
    PhaseMeasurement,
    ProcessSample,
)
from optimizer.study.samples import read_measurement, write_measurement
from tests.measured import phase, record

PROCESSES = (
    ProcessSample(-1.0, "chat", "api_server", 4_194_304, 0.31, 0.3, 570_000_000),
    ProcessSample(1.25, "chat", "worker", 12, 7.999, None, 2**40),
    ProcessSample(2.0, "", "client", 13, 0.0, 0.0, 0),
)
DEVICES = (
    DeviceSample(1.0, "GPU-1111", 2**37, 0, 0.96, 1815.0, 83.0, 650.5, ("sw_thermal", "sw_power_cap"), (7, 321)),
    DeviceSample(2.0, "MIG-2222", None, None),
    DeviceSample(2.0, "host", 5, 6),
)
CLIENT = ClientReport(
    n_processes=2, send_lag_p99_ms=3.1, read_lag_p99_ms=None, cores=0.4, n_messages=12_345, fault="late, by µs"
)
COUNTERS = EngineCounters(*[float(i) for i in range(len(fields(EngineCounters)))])
FULL = phase(
    [record(0.0, 0.5, [0.1])],
    samples=(EngineSample(1.0, "chat", 1.0, None, 0.5, 3.0),),
    counters={"chat": COUNTERS, "code": EngineCounters()},
    processes=PROCESSES,
    devices=DEVICES,
    client=CLIENT,
    notes=("the card was hot",),
)


def stored(folder: Path, measured: PhaseMeasurement) -> PhaseMeasurement:
    write_measurement(folder / "m.npz", Measurement({measured.load: measured}, False, "vLLM 0.32.0"))
    return read_measurement(folder / "m.npz").phases[measured.load]


def test_machine_samples_come_back_as_they_were(tmp_path: Path) -> None:
    back = stored(tmp_path, FULL)
    assert back.processes == PROCESSES
    assert back.devices == DEVICES
    assert back.client == CLIENT
    assert back.counters == FULL.counters
    assert back.notes == FULL.notes


def test_a_phase_without_them_has_none(tmp_path: Path) -> None:
    back = stored(tmp_path, phase([record(0.0, 0.5, [0.1])]))
    assert (back.processes, back.devices, back.client, back.notes) == ((), (), None, ())


def test_a_file_from_before_there_were_any_still_loads(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    stored(tmp_path, replace(FULL, processes=(), devices=(), client=None))
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays["header"].tobytes())
    old = ("n_preemptions", "prompt_tokens", "cached_prompt_tokens", "n_steps")
    header["phases"]["steady"]["counters"] = {"chat": dict.fromkeys(old, 2.0)}
    del header["phases"]["steady"]["notes"]
    with zipfile.ZipFile(path, "w") as archive_file:
        for name, column in (arrays | {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}).items():
            with archive_file.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, column)
    back = read_measurement(path).phases["steady"]
    assert back.counters == {"chat": EngineCounters(2.0, 2.0, 2.0, 2.0)}
    assert (back.processes, back.devices, back.client, back.notes) == ((), (), None, ())


def test_ten_minutes_of_two_servers_take_little_room(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    processes = tuple(
        ProcessSample(t + rng.random() / 100, name, role, pid, float(rng.random()), float(rng.random()), 10**9 + t)
        for t in range(600)
        for pid, (name, role) in enumerate((i, r) for i in "ab" for r in ("api_server", "engine_core", "worker"))
    )
    devices = tuple(DeviceSample(float(t), "GPU-1", 10**10, 10**9, 0.9, 1965.0, 60.0, 500.0) for t in range(600))
    write_measurement(
        tmp_path / "m.npz", Measurement({"steady": phase([], processes=processes, devices=devices)}, False, "v")
    )
    assert (tmp_path / "m.npz").stat().st_size < 150_000
