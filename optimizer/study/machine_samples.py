"""What processes and devices did in a phase, as columns, and back. A file from before there was any has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import ClientReport, DeviceSample, PhaseMeasurement, ProcessSample
from optimizer.study.columns import Columns, coded, float_or_none, int_or_none, real, whole

_DEVICE_GAUGES = ("kernel_resident_share", "sm_clock_mhz", "temperature_c", "power_w")
_DEVICE_BYTES = ("used_bytes", "free_bytes")


def pack_machine(phase: PhaseMeasurement) -> tuple[dict[str, Any], Columns]:
    """Texts for the header, and columns; neither if the phase has no such samples."""
    texts: dict[str, Any] = {"client": asdict(phase.client)} if phase.client is not None else {}
    columns: Columns = {}
    if phase.processes:
        _pack_processes(phase.processes, texts, columns)
    if phase.devices:
        _pack_devices(phase.devices, texts, columns)
    return texts, columns


def _pack_processes(samples: tuple[ProcessSample, ...], texts: dict[str, Any], columns: Columns) -> None:
    texts["process_instances"], columns["process_instance"] = coded(s.instance for s in samples)
    texts["process_roles"], columns["process_role"] = coded(s.role for s in samples)
    columns["process_time_s"] = real(s.time_s for s in samples)
    columns["process_pid"] = whole(s.pid for s in samples)
    columns["process_cores"] = real(s.cores for s in samples)
    columns["process_busiest_thread_cores"] = real(s.busiest_thread_cores for s in samples)
    columns["process_rss_bytes"] = whole(s.rss_bytes for s in samples)
    columns["process_delayed"] = real(s.delayed for s in samples)


def _pack_devices(samples: tuple[DeviceSample, ...], texts: dict[str, Any], columns: Columns) -> None:
    texts["devices"], columns["device"] = coded(s.device for s in samples)
    texts["device_throttles"], columns["device_throttle"] = coded(",".join(s.throttle_reasons) for s in samples)
    texts["device_foreigners"], columns["device_foreign"] = coded(",".join(map(str, s.foreign_pids)) for s in samples)
    columns["device_time_s"] = real(s.time_s for s in samples)
    for name in _DEVICE_BYTES:
        columns[f"device_{name}"] = whole(getattr(s, name) for s in samples)
    for name in _DEVICE_GAUGES:
        columns[f"device_{name}"] = real(getattr(s, name) for s in samples)


def unpack_machine(texts: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The fields of a PhaseMeasurement that `pack_machine` packed."""
    client = texts.get("client")
    return {
        "client": None if client is None else ClientReport(**client),
        "processes": tuple(_unpack_processes(texts, columns)),
        "devices": tuple(_unpack_devices(texts, columns)),
    }


def _unpack_processes(texts: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> Iterable[ProcessSample]:
    times_s = columns.get("process_time_s", np.empty(0))
    delayed = columns.get("process_delayed", np.full(len(times_s), np.nan))
    for i, time_s in enumerate(times_s):
        yield ProcessSample(
            time_s=float(time_s),
            instance=texts["process_instances"][columns["process_instance"][i]],
            role=texts["process_roles"][columns["process_role"][i]],
            pid=int(columns["process_pid"][i]),
            cores=float(columns["process_cores"][i]),
            busiest_thread_cores=float_or_none(columns["process_busiest_thread_cores"][i]),
            rss_bytes=int(columns["process_rss_bytes"][i]),
            delayed=float_or_none(delayed[i]),
        )


def _unpack_devices(texts: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> Iterable[DeviceSample]:
    for i, time_s in enumerate(columns.get("device_time_s", np.empty(0))):
        foreign = texts["device_foreigners"][columns["device_foreign"][i]]
        throttles = texts["device_throttles"][columns["device_throttle"][i]]
        yield DeviceSample(
            time_s=float(time_s),
            device=texts["devices"][columns["device"][i]],
            used_bytes=int_or_none(columns["device_used_bytes"][i]),
            free_bytes=int_or_none(columns["device_free_bytes"][i]),
            throttle_reasons=tuple(filter(None, throttles.split(","))),
            foreign_pids=tuple(int(pid) for pid in filter(None, foreign.split(","))),
            **{name: float_or_none(columns[f"device_{name}"][i]) for name in _DEVICE_GAUGES},
        )
