"""What was running when the memory ran out, and whether a request's own parameters made the peak."""

from __future__ import annotations

import re
from collections.abc import Sequence

from optimizer.diagnosis.scan import Finding, Scan

_FRAMES = {"_get_prompt_logprobs_dict", "compute_prompt_logprobs", "gather_logprobs", "compute_logprobs"}
_PARAMETERS = re.compile(r"prompt_logprobs=\d+|\blogprobs=(?!None\b|0\b|1\b)\d+|\bn=(?!1\b)\d+")
TRIGGERS = {"request_params": "a request's own parameters made the peak (prompt_logprobs, logprobs or n)"}


def trigger_of(root: Finding, scan: Scan) -> str:
    """`request_params` if the failing step computed log-probabilities or several answers of one prompt."""
    if root.kind != "runtime_peak":
        return ""
    functions = {*root.frames, *scan.late_frames}
    if functions & _FRAMES or any(_PARAMETERS.search(line.message) for line in scan.dumps):
        return "request_params"
    return ""


def describe_in_flight(in_flight: Sequence[tuple[int, int]], kind: str) -> list[str]:
    """The sizes that ran at the failure, one line; nothing for failures that no request causes."""
    if not in_flight or kind not in ("runtime_peak", "hang"):
        return []
    longest = max(in_flight, key=sum)
    tokens = sum(prompt + output for prompt, output in in_flight)
    return [f"in flight: {len(in_flight)} requests, {tokens} tokens, the longest {longest[0]} + {longest[1]}"]
