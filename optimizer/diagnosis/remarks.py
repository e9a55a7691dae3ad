"""What a log tells of a server that did not fail: preemptions and late compilation, which are slow and no error.

vLLM's V1 engine logs no single preemption; 0.32's statistics count them. A log without any proves nothing:
the counter `vllm:num_preemptions_total` does."""

from __future__ import annotations

import re

from optimizer.diagnosis.log_line import LogLine

_CUMULATIVE = re.compile(r"is preempted by PreemptionMode(?:.*total_num_cumulative_preemption=(\d+))?")
_COUNTED = re.compile(r"\bPreemptions: (\d+)")
_COMPILED = re.compile(r"kernel JIT compilation during inference: (\w+)")


class Remarks:
    """Feed every line, then read `lines`."""

    def __init__(self) -> None:
        self._n_preempted = 0
        self._compiled: dict[str, None] = {}

    def feed(self, line: LogLine) -> None:
        message = line.message
        if "reempt" in message:
            if found := _CUMULATIVE.search(message):
                self._n_preempted = max(self._n_preempted + (found[1] is None), int(found[1] or 0))
            elif counted := _COUNTED.search(message):
                self._n_preempted += int(counted[1])
        elif "JIT" in message and (kernel := _COMPILED.search(message)):
            self._compiled[kernel[1]] = None

    @property
    def compiled(self) -> tuple[str, ...]:
        """Kernels that were compiled while requests ran, in their order."""
        return tuple(self._compiled)

    @property
    def lines(self) -> tuple[str, ...]:
        told = []
        if self._n_preempted:
            told.append(
                f"{self._n_preempted} preemptions were logged: the KV cache was full at times. That is no error and no"
                " out-of-memory, but it costs latency: diagnose --url, or --study and --trial, say which budget it is"
            )
        if self._compiled:
            kernels = ", ".join(self._compiled)
            told.append(
                f"kernels were compiled while requests ran ({kernels}): the first requests of such a shape are slow;"
                " warm up with the workload's own lengths and sampling parameters, and leave these out of a P99"
            )
        return tuple(told)
