"""Kernels that a server compiled while requests were measured: the first of such a shape are slow, and only those."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optimizer.diagnosis.log_line import read_lines
from optimizer.diagnosis.remarks import Remarks
from optimizer.engines.vllm.endpoint import Endpoint
from optimizer.engines.vllm.finding import Finding
from optimizer.engines.vllm.log_file import LogFollower


class ColdKernels:
    """Reads on in the servers' logs, where vLLM names each kernel that it compiles at such a time (jit_monitor.py).
    Nothing is found of a server whose log is not ours to read."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._followers = {e.name: LogFollower(e.log_path) for e in endpoints if e.log_path is not None}

    def skip(self) -> None:
        """What was printed until now was before the measured requests."""
        for follower in self._followers.values():
            follower.new_lines()

    def findings(self) -> Iterator[Finding]:
        """Of what was printed since."""
        for name, follower in self._followers.items():
            remarks = Remarks()
            for line in read_lines(follower.new_lines()):
                remarks.feed(line)
            if remarks.compiled:
                kernels = ", ".join(remarks.compiled)
                text = f"{name}: kernels were compiled while requests were measured ({kernels}): their first requests"
                yield Finding("disturbed", "cold", f"{text} are slow, and belong to a warm-up")
