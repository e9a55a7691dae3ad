"""Raw samples on disk: a Measurement as named arrays in one compressed file, and back.

Times are kept to 0.1 µs, as whole ticks from one message to the next: ten times smaller than floats and far below
what a client can time. Everything else comes back exactly.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import EngineCounters, EngineSample, Load, Measurement, PhaseMeasurement, RequestRecord
from optimizer.study.columns import Columns, coded, float_or_none, int_or_none, real, whole
from optimizer.study.machine_samples import pack_machine, unpack_machine

TICKS_PER_S = 10_000_000
_COMPRESSION_LEVEL = 1
"""zlib level 1: level 6 takes four times as long for a tenth less space."""
_OPTIONAL = ("cached_prompt_tokens", "n_preemptions", "recomputed_tokens")
_GAUGES = ("n_running", "n_waiting", "kv_usage", "n_preemptions_total")
_PHASE_FIELDS = (
    "load", "n_gpus", "offered_per_s", "counted_from_s", "counted_until_s", "end_s", "min_free_memory_bytes",
    "was_running_set_full", "cut_reason",
)  # fmt: skip


def write_measurement(path: Path, measurement: Measurement) -> None:
    """One zip of .npy arrays (numpy.load reads it) with the rest as JSON in the array `header`."""
    header: dict[str, Any] = {
        "is_simulated": measurement.is_simulated,
        "engine": measurement.engine,
        "kv_tokens": dict(measurement.kv_tokens),
        "phases": {},
    }
    arrays: Columns = {}
    for load, phase in measurement.phases.items():
        texts, columns = _pack_phase(phase)
        header["phases"][load] = texts
        arrays |= {f"{load}.{name}": column for name, column in columns.items()}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION_LEVEL) as archive:
        for name, column in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(column), allow_pickle=False)


def read_measurement(path: Path) -> Measurement:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        header = json.loads(stored["header"].tobytes())
        phases: dict[Load, PhaseMeasurement] = {}
        for load, texts in header["phases"].items():
            columns = {k.removeprefix(f"{load}."): stored[k] for k in stored.files if k.startswith(f"{load}.")}
            phases[load] = _unpack_phase(texts, columns)
    return Measurement(phases, header["is_simulated"], header["engine"], header["kv_tokens"])


def _pack_phase(phase: PhaseMeasurement) -> tuple[dict[str, Any], Columns]:
    records, samples = phase.records, phase.samples
    tenants, tenant = coded(r.tenant for r in records)
    failures, failure = coded(r.failure for r in records)
    instances, instance = coded(s.instance for s in samples)
    texts = {name: getattr(phase, name) for name in _PHASE_FIELDS}
    texts |= {"tenants": tenants, "failures": failures, "instances": instances, "counters": _counters(phase.counters)}
    texts["notes"], texts["disturbances"] = list(phase.notes), list(phase.disturbances)
    columns: Columns = {"tenant": tenant, "failure": failure, "sample_instance": instance}
    for name, kind in (("request_id", np.int64), ("prompt_tokens", np.int64), ("asked_output_tokens", np.int64),
                       ("scheduled_s", np.float64), ("sent_s", np.float64)):  # fmt: skip
        columns[name] = np.array([getattr(r, name) for r in records], kind)
    for name in _OPTIONAL:
        columns[name] = whole(getattr(r, name) for r in records)
    columns |= _pack_times(records)
    columns["sample_time_s"] = np.array([s.time_s for s in samples], np.float64)
    for name in _GAUGES:
        columns[name] = real(getattr(s, name) for s in samples)
    machine_texts, machine_columns = pack_machine(phase)
    return texts | machine_texts, columns | machine_columns


def _pack_times(records: Sequence[RequestRecord]) -> Columns:
    n_messages = np.array([r.token_times_s.size for r in records], np.int64)
    times = np.concatenate([r.token_times_s for r in records]) if records else np.empty(0)
    ticks = np.round(times * TICKS_PER_S).astype(np.int64)
    steps = np.diff(ticks, prepend=0)
    columns: Columns = {
        "n_messages": n_messages,
        "time_steps": steps.astype(np.int32) if _fits_int32(steps) else steps,
    }
    if any(r.tokens_per_message is not None for r in records):
        counts = [r.tokens_per_message if r.tokens_per_message is not None else np.ones(r.token_times_s.size, np.int32)
                  for r in records]  # fmt: skip
        columns["tokens_per_message"] = np.concatenate(counts).astype(np.int32)
        columns["has_counts"] = np.array([r.tokens_per_message is not None for r in records], np.bool_)
    return columns


def _unpack_phase(texts: dict[str, Any], columns: Mapping[str, NDArray[Any]]) -> PhaseMeasurement:
    return PhaseMeasurement(
        records=tuple(_unpack_records(texts, columns)),
        samples=tuple(_unpack_samples(texts, columns)),
        counters={name: EngineCounters(**values) for name, values in texts["counters"].items()},
        **{name: texts[name] for name in _PHASE_FIELDS},
        **unpack_machine(texts, columns),
        notes=tuple(texts.get("notes", ())),
        disturbances=tuple(texts.get("disturbances", ())),
    )


def _unpack_records(texts: dict[str, Any], columns: Mapping[str, NDArray[Any]]) -> Iterable[RequestRecord]:
    ends = np.cumsum(columns["n_messages"])
    times = np.cumsum(columns["time_steps"], dtype=np.int64) / TICKS_PER_S
    counts, has_counts = columns.get("tokens_per_message"), columns.get("has_counts")
    for i, end in enumerate(ends):
        part = slice(int(end - columns["n_messages"][i]), int(end))
        yield RequestRecord(
            request_id=int(columns["request_id"][i]),
            tenant=texts["tenants"][columns["tenant"][i]],
            scheduled_s=float(columns["scheduled_s"][i]),
            sent_s=float(columns["sent_s"][i]),
            prompt_tokens=int(columns["prompt_tokens"][i]),
            asked_output_tokens=int(columns["asked_output_tokens"][i]),
            token_times_s=times[part],
            tokens_per_message=counts[part]
            if counts is not None and has_counts is not None and has_counts[i]
            else None,
            failure=texts["failures"][columns["failure"][i]],
            **{name: int_or_none(columns[name][i]) for name in _OPTIONAL},
        )


def _unpack_samples(texts: dict[str, Any], columns: Mapping[str, NDArray[Any]]) -> Iterable[EngineSample]:
    for i, time_s in enumerate(columns["sample_time_s"]):
        gauges = {name: float_or_none(columns[name][i]) for name in _GAUGES}
        yield EngineSample(float(time_s), texts["instances"][columns["sample_instance"][i]], **gauges)


def _counters(counters: Mapping[str, EngineCounters]) -> dict[str, dict[str, float | None]]:
    names = EngineCounters.__dataclass_fields__
    return {instance: {name: getattr(values, name) for name in names} for instance, values in counters.items()}


def _fits_int32(steps: NDArray[np.int64]) -> bool:
    return not steps.size or bool(np.abs(steps).max() < 2**31)
