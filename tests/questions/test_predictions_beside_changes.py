"""A simulated prediction stands beside its change wherever the change is recommended."""

from __future__ import annotations

import numpy as np

from objectives.measurement import PhaseMeasurement, RequestRecord
from optimizer.questions.answer import Change
from optimizer.questions.diagnosis import Diagnosis
from optimizer.questions.interference import Spikes
from optimizer.questions.of_phase import Server
from optimizer.questions.prediction import Beside, predict, with_predictions
from optimizer.questions.preemption import Checklist, Line
from optimizer.questions.words import diagnosis_lines
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model

SMALL = {"max_num_seqs": 8, "max_num_batched_tokens": 1024, "max_model_len": 2048}


def phase(*tenants: str) -> PhaseMeasurement:
    records = tuple(
        RequestRecord(i, tenant, 0.01 * i, 0.01 * i, 500, 20, np.array([1.0 + i]))
        for i in range(12)
        for tenant in tenants or ("users",)
    )
    return PhaseMeasurement("steady", records, 1, 100.0, 0.0, 3.0, 3.0)


def server(name: str = "server", *tenants: str, **config: object) -> Server:
    model, gpu = find_model("Llama-3.1-8B-Instruct"), find_gpu("A100-80")
    return Server(name=name, config=SMALL | config, model=model, gpu=gpu, tenants=tenants)


def test_also_beside_those_of_the_checklist() -> None:
    change, other = Change("max_num_seqs", 4, "so many fit"), Change("max_num_seqs", 2, "fewer")
    checklist = Checklist(True, "preempting", (Line("too many sequences", "cause", "why", (change, other)),))
    found = Diagnosis("trial 0", "degraded", (), (), checklist, Spikes("none", False))
    first, second = with_predictions(found, server(), phase(), 1).considered
    now, then = first.predicted["ttft_p99_ms"]
    assert then > now > 0, "fewer at once wait longer"
    assert second == other, "one is simulated, no more"


def test_what_gains_nothing_is_no_trial_worth() -> None:
    checklist = Checklist(True, "preempting", (Line("x", "cause", "why", (Change("watermark", 0.05, "why"),)),))
    found = with_predictions(
        Diagnosis("trial 0", "degraded", (), (), checklist, Spikes(False, "none")), server(), phase()
    )
    assert not found.changes and [c.name for c in found.in_vain] == ["watermark"]
    assert "no trial needed, by simulation nothing gains: watermark = 0.05" in diagnosis_lines(found, "server")[-1]


def test_the_largest_predicted_gain_comes_first() -> None:
    small = Change("a", 1, "why", predicted={"ttft_p99_ms": (100.0, 90.0), "itl_p99_ms": (10.0, 30.0)})
    large, unknown = Change("b", 1, "why", predicted={"requests_per_s_per_gpu": (1.0, 1.5)}), Change("c", 1, "why")
    checklist = Checklist(True, "preempting", (Line("x", "cause", "why", (unknown, small, large)),))
    found = Diagnosis("trial 0", "degraded", (), (), checklist, Spikes(False, "none"))
    assert [c.name for c in found.changes] == ["b", "a", "c"]
    assert "P99 TTFT 100 -> 90 ms; P99 ITL 10 -> 30 ms" in small.text


def test_a_neighbour_takes_its_part_of_the_card() -> None:
    half = {"gpu_memory_utilization": 0.45}
    change, both = Change("max_num_seqs", 4, "why"), phase("a", "b")
    [alone] = predict([change], server("one", "a", **half), both)
    beside = Beside((server("two", "b", **half),), "time-slice")
    [shared] = predict([change], server("one", "a", **half), both, beside)
    assert shared.predicted["itl_p99_ms"][0] > 1.3 * alone.predicted["itl_p99_ms"][0]
    [refused] = predict([Change("gpu_memory_utilization", 0.9, "why")], server("one", "a", **half), both, beside)
    assert refused.is_in_vain and "does not start" in refused.refused
