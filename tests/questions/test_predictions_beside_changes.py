"""A simulated prediction stands beside its change wherever the change is recommended."""

from __future__ import annotations

import numpy as np

from objectives.measurement import PhaseMeasurement, RequestRecord
from optimizer.questions.answer import Change
from optimizer.questions.diagnosis import Diagnosis
from optimizer.questions.interference import Spikes
from optimizer.questions.of_phase import Server
from optimizer.questions.prediction import with_predictions
from optimizer.questions.preemption import Checklist, Line
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model


def phase() -> PhaseMeasurement:
    records = tuple(RequestRecord(i, "users", 0.01 * i, 0.01 * i, 500, 20, np.array([1.0 + i])) for i in range(12))
    return PhaseMeasurement("steady", records, 1, 100.0, 0.0, 3.0, 3.0)


def test_also_beside_those_of_the_checklist() -> None:
    change, other = Change("max_num_seqs", 4, "so many fit"), Change("max_num_seqs", 2, "fewer")
    checklist = Checklist(True, "preempting", (Line("too many sequences", "cause", "why", (change, other)),))
    found = Diagnosis("trial 0", "degraded", (), (), checklist, Spikes("none", False))
    config = {"max_num_seqs": 8, "max_num_batched_tokens": 1024, "max_model_len": 2048}
    server = Server(name="server", config=config, model=find_model("Llama-3.1-8B-Instruct"), gpu=find_gpu("A100-80"))
    first, second = with_predictions(found, server, phase(), 1).changes
    now, then = first.predicted["ttft_p99_ms"]
    assert then > now > 0, "fewer at once wait longer"
    assert second == other, "one is simulated, no more"
