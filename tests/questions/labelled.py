"""Servers made to be in a known trouble, on the simulator: what each case is, and what must be said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import ClientReport, PhaseMeasurement
from optimizer.engines.engine import LoadPlan
from optimizer.questions.diagnosis import Diagnosis, diagnose
from optimizer.questions.of_phase import Server, breakage_of, situation_of
from optimizer.workload.trace import Trace
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model
from tests.engines.simulated import engine, placement, plan, trace


@dataclass(frozen=True)
class Case:
    """`says` judges the diagnosis."""

    label: str
    gpu: str
    model: str
    arguments: Mapping[str, Any]
    loads: tuple[LoadPlan, ...]
    says: Callable[[Diagnosis], bool]
    edit: Callable[[PhaseMeasurement], PhaseMeasurement] = lambda phase: phase


def loaded(case: Case, loads: Sequence[LoadPlan]) -> tuple[Server, list[PhaseMeasurement]]:
    """Its server, and these of its loads as the simulator measured them."""
    made = engine(case.gpu, case.model, noise=1.0)
    deployed = placement(**case.arguments)
    report = made.boot(deployed, 1)
    server = Server(
        name="server",
        config=dict(deployed.instances[0].config),
        kv_tokens=report.kv_tokens["server"],
        model=find_model(case.model),
        gpu=find_gpu(case.gpu),
    )
    phases = [case.edit(made.replay(load)) for load in loads]
    made.stop()
    return server, phases


def measured(case: Case) -> Diagnosis:
    server, phases = loaded(case, case.loads)
    breakages = [breakage_of(p, server) for p in phases if p.load == "stress"]
    situations = [situation_of(p, server, p.load) for p in phases]
    return diagnose(situations, breakage=next(filter(None, breakages), None))


def verdict(d: Diagnosis, question: int) -> str:
    return d.answers[question - 1].verdict


def saturated(n: int, prompts: tuple[int, int], outputs: tuple[int, int], seed: int = 0) -> LoadPlan:
    return plan(trace(n, 1.0, seed, prompts=prompts, outputs=outputs), "saturation")


def steady(n: int, span_s: float, prompts: tuple[int, int], outputs: tuple[int, int], seed: int = 0) -> LoadPlan:
    return plan(trace(n, span_s, seed, prompts=prompts, outputs=outputs))


def stress(n: int, prompts: tuple[int, int], outputs: tuple[int, int]) -> LoadPlan:
    return plan(trace(n, 2.0, 7, prompts=prompts, outputs=outputs), "stress")


def bandwidth_bound() -> Iterator[Case]:
    def says(d: Diagnosis) -> bool:
        return verdict(d, 1).startswith("decode bandwidth") and verdict(d, 2) == "gpu"

    for gpu, model, seats in (
        ("A100-80", "Llama-3.1-8B", 16),
        ("H100-80", "Qwen2.5-14B", 16),
        ("L40S-48", "Llama-3.1-8B", 8),
        ("RTX-4090-24", "Qwen2.5-7B", 8),
        ("H200-141", "Qwen3-32B", 32),
    ):
        arguments = {"max_num_seqs": seats}
        yield Case("bandwidth", gpu, model, arguments, (saturated(6 * seats, (100, 400), (200, 400)),), says)


def compute_bound() -> Iterator[Case]:
    def decode(d: Diagnosis) -> bool:
        return verdict(d, 1).startswith("decode compute") and verdict(d, 2) == "gpu"

    def prefill(d: Diagnosis) -> bool:
        return verdict(d, 1).endswith("prefill compute") and verdict(d, 2) == "gpu"

    for gpu, model in (("A100-80", "Llama-3.1-8B"), ("H100-80", "Llama-3.1-8B"), ("A100-80", "Qwen2.5-7B")):
        arguments = {"max_num_seqs": 512, "max_model_len": 1024}
        yield Case("compute", gpu, model, arguments, (saturated(1100, (4, 10), (100, 200)),), decode)
        arguments = {"max_num_seqs": 64, "max_num_batched_tokens": 8192}
        yield Case("compute", gpu, model, arguments, (saturated(200, (2000, 3500), (2, 4)),), prefill)


def cpu_bound() -> Iterator[Case]:
    def says(d: Diagnosis) -> bool:
        return verdict(d, 2) == "cpu" and d.answers[1].confidence in ("high", "medium")

    for gpu, model in (("H100-80", "Qwen2.5-0.5B"), ("A100-80", "Qwen2.5-1.5B"), ("H200-141", "Qwen2.5-0.5B")):
        for eager in (True, False):
            arguments = {"max_num_seqs": 32, "enforce_eager": eager}
            yield Case("cpu", gpu, model, arguments, (saturated(150, (50, 100), (100, 200)),), says)


def overloaded() -> Iterator[Case]:
    def says(d: Diagnosis) -> bool:
        return verdict(d, 3) == "overloaded" and d.health == "degraded" and verdict(d, 5) == "steadier"

    for gpu, model, n in (
        ("A100-40", "Llama-3.1-8B", 1200),
        ("L4-24", "Llama-3.1-8B", 300),
        ("L40S-48", "Qwen2.5-14B", 500),
    ):
        yield Case("overloaded", gpu, model, {"max_num_seqs": 16}, (steady(n, 60.0, (200, 1500), (50, 300)),), says)


def too_few_seats() -> Iterator[Case]:
    """1.5 times what it carries is offered; with more seats it carries 3 to 9 times."""

    def says(d: Diagnosis) -> bool:
        return verdict(d, 4) == "parameters" and any(c.name == "max_num_seqs" for c in d.answers[3].changes)

    for gpu, model, seats, n, prompts, outputs in (
        ("A100-80", "Llama-3.1-8B", 8, 353, (200, 1500), (50, 200)),
        ("H100-80", "Qwen2.5-14B", 8, 185, (100, 400), (200, 400)),
        ("L40S-48", "Llama-3.1-8B", 16, 277, (50, 300), (100, 300)),
    ):
        yield Case("parameters", gpu, model, {"max_num_seqs": seats}, (steady(n, 60.0, prompts, outputs),), says)


def too_much_load() -> Iterator[Case]:
    """Twice what it carries is offered, and no budget carries a tenth more."""

    def says(d: Diagnosis) -> bool:
        return verdict(d, 4) == "workload" and verdict(d, 3) == "overloaded"

    for gpu, model, seats, n, prompts, outputs in (
        ("A100-40", "Llama-3.1-8B", 256, 1283, (200, 1500), (50, 200)),
        ("L4-24", "Qwen2.5-7B", 64, 370, (200, 1500), (50, 200)),
    ):
        yield Case("workload", gpu, model, {"max_num_seqs": seats}, (steady(n, 60.0, prompts, outputs),), says)


def kv_starved() -> Iterator[Case]:
    def says(d: Diagnosis) -> bool:
        first = d.checklist.lines[0]
        return bool(d.checklist.is_preempting) and first.verdict == "cause" and verdict(d, 5) == "steadier"

    for gpu, tokens, n in (("A100-40", 8192, 90), ("H100-80", 12288, 180), ("L40S-48", 6144, 40)):
        arguments = {"max_num_seqs": 128, "kv_cache_memory_bytes": tokens * 131_072, "max_model_len": 4096}
        yield Case("kv-starved", gpu, "Llama-3.1-8B", arguments, (steady(n, 20.0, (100, 400), (400, 800)),), says)


def peak_broken() -> Iterator[Case]:
    def says(d: Diagnosis) -> bool:
        return verdict(d, 3) == "peak"

    for gpu in ("A100-40", "H100-80", "L40S-48"):
        arguments = {"max_num_seqs": 128, "kv_cache_memory_bytes": 16384 * 131_072, "max_model_len": 4096}
        loads = (steady(40, 60.0, (100, 300), (50, 150)), stress(60, (200, 500), (700, 1200)))
        yield Case("peak-broken", gpu, "Llama-3.1-8B", arguments, loads, says)


def prefill_interfered() -> Iterator[Case]:
    def says(d: Diagnosis) -> bool:
        return d.spikes.is_prefill is True and any(c.name == "max_num_batched_tokens" for c in d.spikes.changes)

    for gpu, model in (("A100-80", "Llama-3.1-8B"), ("L40S-48", "Llama-3.1-8B"), ("H100-80", "Qwen2.5-14B")):
        arguments = {"max_num_batched_tokens": 8192, "max_model_len": 32768, "max_num_seqs": 32}
        load = streams_and_prompts(8, (50, 2500), np.arange(2.0, 40.0, 5.0), (20_000, 10))
        yield Case("interfered", gpu, model, arguments, (plan(load),), says)


def streams_and_prompts(
    n_streams: int, stream: tuple[int, int], starts_s: NDArray[np.float64], prompt: tuple[int, int]
) -> Trace:
    """Streams from the start, and a long prompt at each of these times; (prompt, output) tokens of either."""
    n = starts_s.size
    return Trace(
        np.concatenate([np.linspace(0.0, 0.5, n_streams), starts_s]),
        np.array([stream[0]] * n_streams + [prompt[0]] * n, np.int32),
        np.array([stream[1]] * n_streams + [prompt[1]] * n, np.int32),
        np.zeros(n_streams + n, np.int16),
    )


def client_bound() -> Iterator[Case]:
    def says(d: Diagnosis) -> bool:
        return verdict(d, 2) == "client"

    fault = "a client process was busy all the time (1.00 cores): give it more processes or free cores"
    for cores in (0.99, 1.0):
        report = ClientReport(1, 40.0, 55.0, cores, 100_000, fault)

        def edit(phase: PhaseMeasurement, report: ClientReport = report) -> PhaseMeasurement:
            return replace(phase, client=report)

        load = steady(100, 60.0, (100, 400), (50, 150))
        yield Case("client", "A100-80", "Llama-3.1-8B", {}, (load,), says, edit)


def healthy() -> Iterator[Case]:
    def says(d: Diagnosis) -> bool:
        return (
            d.health == "healthy"
            and verdict(d, 3) == "healthy"
            and verdict(d, 4) == "fits"
            and not d.checklist.is_preempting
        )

    for gpu, model, n in (
        ("A100-40", "Llama-3.1-8B", 100),
        ("A100-80", "Qwen2.5-14B", 80),
        ("H100-80", "Llama-3.1-8B", 240),
        ("L40S-48", "Llama-3.1-8B", 50),
        ("H200-141", "Qwen3-32B", 60),
        ("RTX-4090-24", "Qwen2.5-7B", 40),
    ):
        loads = (steady(n, 60.0, (100, 1500), (20, 200)), stress(40, (500, 1500), (50, 150)))
        yield Case("healthy", gpu, model, {"max_num_seqs": 64}, loads, says)


KINDS = (
    bandwidth_bound, compute_bound, cpu_bound, overloaded, too_few_seats, too_much_load, kv_starved, peak_broken,
    prefill_interfered, client_bound, healthy,
)  # fmt: skip
CASES = tuple(case for kind in KINDS for case in kind())
