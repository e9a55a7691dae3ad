"""Sampling parameters of recorded requests: told where they are not replayed."""

from __future__ import annotations

import json
from pathlib import Path

from optimizer.workload.reader import open_trace


def test_sampling_parameters_that_cost_memory_are_told_when_dropped(tmp_path: Path) -> None:  # case OOM-12
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 0.0, "input_length": 6500, "output_length": 1, "params": {"prompt_logprobs": 1, "n": 1}},
        {"timestamp": 200.0, "input_length": 300, "output_length": 200, "params": {}},
        {"timestamp": 400.0, "input_length": 300, "output_length": 200, "logprobs": 5},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    notices = open_trace(path, time_unit="ms").notices
    assert [n for n in notices if n.startswith("params not replayed: prompt_logprobs (1 rows), logprobs (1 rows);")]
    path.write_text(
        "\n".join(json.dumps({k: v for k, v in r.items() if k not in ("params", "logprobs")}) for r in rows)
    )
    assert not [n for n in open_trace(path, time_unit="ms").notices if "not replayed" in n]
