"""A study small enough for tests: the real simulator, real SQLite, a packaged trace, about two seconds of CPU."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from objectives.measurement import LOADS
from optimizer.cluster.inline import InlineExecutor
from optimizer.engines.build import EngineSpec, SimulatedEngineSpec
from optimizer.engines.engine import BootReport, Engine, Placement
from optimizer.engines.simulator.engine import SimulatorSpec
from optimizer.errors import EngineFailed
from optimizer.study.calibration import Calibration, Calibrator
from optimizer.study.confirmation import Confirmer
from optimizer.study.events import Event
from optimizer.study.folder import StudyFolder
from optimizer.study.judge import Judge
from optimizer.study.rates import RateProbe
from optimizer.study.runs import Runs
from optimizer.study.setup import Setup, SetupOptions, prepare
from optimizer.trial import TrialPlan
from search_spaces.parameter import Value
from tests.forwarding_engine import ForwardingEngine

SMALL = """\
name: small
why: a study for tests
model: Llama-3.1-8B
gpu: A10G-24
tenants:
  users: {trace: azure-conv}
objectives:
  - {metric: saturation_output_tokens_per_s_per_gpu, direction: maximize}
  - {metric: steady_ttft_p99_ms, direction: minimize}
  - {metric: steady_itl_p99_ms, direction: minimize}
limits:
  - {metric: steady_preemptions_per_request, at_most: 0.05}
  - {metric: stress_preemptions_per_request, at_most: 0.3}
  - {metric: stress_failed_share, at_most: 0.0}
  - {metric: steady_stall_p99_ms, at_most_times_reference: 3.0}
load:
  {sustain_share: 0.8, measured_requests: 380, warmup_requests: 20, saturation_requests: 120, stress_requests: 40}
budget: {n_trials: 6, stable_trials: 2, startup_trials: 3, noise_repeats: 2}
space: {memory_knob: kv_cache_memory_bytes, memory_span: 0.15}
"""


SHARED = (
    (
        "tenants:\n  users: {trace: azure-conv}\n",
        "instances: [chat, batch]\ntenants:\n  chat: {instance: chat, trace: azure-conv, share: 0.5}\n"
        "  batch: {instance: batch, trace: azure-code, share: 0.5}\n",
    ),
    ("measured_requests: 380", "measured_requests: 800"),
    ("A10G-24", "L40S-48"),
)
"""Changes that make it two servers on one card."""


def write_profile(folder: Path, *changes: tuple[str, str], name: str = "small.yaml") -> str:
    """SMALL with texts replaced; the file's path."""
    text = SMALL
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return str(folder / name)


def small_setup(folder: Path, *changes: tuple[str, str], **options: object) -> Setup:
    return prepare(SetupOptions(profile=write_profile(folder, *changes), **options))  # type: ignore[arg-type]


def engine_of(setup: Setup, noise: float = 1.0) -> SimulatedEngineSpec:
    return SimulatedEngineSpec(SimulatorSpec(setup.model, setup.gpu, noise))


@dataclass(frozen=True)
class MoodyEngineSpec:
    """The simulator, except that some boots fail: a machine's fault the first `n_broken` times, or for good where
    `max_num_seqs` is one of `refused` (the configuration's fault) or `breaking` (the machine's)."""

    inner: EngineSpec
    n_broken: int = 0
    refused: frozenset[int] = frozenset()
    breaking: frozenset[int] = frozenset()
    broken_kind: str = "port"
    at_most: int | None = None
    """More sequences than this are refused, and the refusal names the bound."""

    @property
    def n_gpus(self) -> int:
        return 0

    def build(self) -> Engine:
        return MoodyEngine(self)

    def build_for(self, slot: int, n_slots: int, gpu_uuids: tuple[str, ...]) -> Engine:
        return self.build()


class MoodyEngine(ForwardingEngine):
    def __init__(self, spec: MoodyEngineSpec) -> None:
        super().__init__(spec.inner.build())
        self._spec = spec
        self._n_left = spec.n_broken

    def boot(self, placement: Placement, seed: int) -> BootReport:
        seqs = placement.instances[0].config.get("max_num_seqs")
        if self._n_left > 0 or seqs in self._spec.breaking:
            self._n_left -= 1
            raise EngineFailed(self._spec.broken_kind, "boot", "port 8000 is taken", is_config_fault=False)
        most = self._spec.at_most
        if most is not None and isinstance(seqs, int) and seqs > most:
            text, bounds = f"max_num_seqs ({seqs}) exceeds available Mamba cache blocks", {"max_num_seqs_at_most": most}
            raise EngineFailed("kv_capacity", "graph_capture", text, is_config_fault=True, bounds=bounds)
        if seqs in self._spec.refused:
            raise EngineFailed("kv_capacity", "boot", f"max_num_seqs {seqs} does not fit", is_config_fault=True)
        return super().boot(placement, seed)


@dataclass
class Bench:
    """An inline executor, a study folder and the events of everything that is run on it."""

    setup: Setup
    folder: StudyFolder
    events: list[Event]
    executor: InlineExecutor
    runs: Runs


def bench(path: Path, setup: Setup, spec: EngineSpec | None = None) -> Bench:
    events: list[Event] = []
    folder = StudyFolder(path / "study").claim()
    executor = InlineExecutor(spec or engine_of(setup))
    return Bench(setup, folder, events, executor, Runs(executor, folder, events.append))


def azure_rows(arrival_s: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> str:
    """The same requests as an Azure 2023 CSV."""
    stamps = (f"2024-05-01 {int(t // 3600):02d}:{int(t % 3600 // 60):02d}:{t % 60:010.7f}" for t in arrival_s)
    rows = zip(stamps, prompt, output, strict=True)
    return "TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "\r\n".join(f"{t},{p},{o}" for t, p, o in rows)


def mooncake_rows(arrival_s: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> str:
    """The same requests as Mooncake JSON lines: milliseconds, block ids of 512 tokens, one shared first block."""
    lines = []
    for k, (t, p, o) in enumerate(zip(arrival_s, prompt, output, strict=True)):
        own = range(1 + 1000 * k, 1 + 1000 * k + math.ceil(p / 512) - 1)
        lines.append(f'{{"timestamp":{round(t * 1000)},"input_length":{p},"output_length":{o},"hash_ids":{[0, *own]}}}')
    return "\n".join(lines) + "\n"


def traffic(
    n: int, *, rate_per_s: float = 2.0, prompt: float = 600, output: float = 120, spread: float = 0.6, seed: int = 5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Poisson arrivals with log-normal lengths of these medians."""
    rng = np.random.default_rng(seed)
    lengths = [np.maximum(rng.lognormal(math.log(m), spread, n), 1).astype(int) for m in (prompt, output)]
    return np.cumsum(rng.exponential(1 / rate_per_s, n)), lengths[0], lengths[1]


def environment() -> Mapping[str, str]:
    """Of a child process that runs this checkout."""
    root = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": root, "COLUMNS": "200"}


def calibrator(made: Bench, **changes: object) -> Calibrator:
    setup = made.setup
    plain = Calibrator(
        profile=setup.profile,
        references=setup.references,
        loads=setup.traffic.loads,
        shares=setup.traffic.shares,
        own_limits=setup.promised,
        single_server=setup.single_server,
        seed=0,
        runs=made.runs,
        listener=made.events.append,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def judge_of(setup: Setup, calibration: Calibration) -> Judge:
    return Judge(setup.profile.objectives, calibration.limits, calibration.targets)


def confirmer(made: Bench, calibration: Calibration, **changes: object) -> Confirmer:
    setup, rate = made.setup, calibration.rate_per_s
    is_held_out = setup.traffic.held_out is not None
    plain = Confirmer(
        judge=judge_of(setup, calibration),
        loads=setup.traffic.loads(rate, LOADS, is_held_out=is_held_out),
        is_held_out=is_held_out,
        steady_again=setup.traffic.loads(rate, ("steady",)),
        reference=setup.references[0].placement,
        reference_values=calibration.values,
        relative={r.metric: r.times_reference for r in setup.profile.relative_limits},
        floors=calibration.noise,
        seed=0,
        runs=made.runs,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def probe(made: Bench, calibration: Calibration) -> RateProbe:
    setup = made.setup
    judge = judge_of(setup, calibration)
    return RateProbe(
        judge, lambda rate: setup.traffic.loads(rate, ("steady",)), calibration.rate_per_s, seed=0, runs=made.runs
    )


def values_of(made: Bench, calibration: Calibration, trial: int, placement: Placement) -> tuple[float, ...]:
    """The objectives of one trial at R, run and stored."""
    plan = TrialPlan(trial, 0, "search", placement, made.setup.traffic.loads(calibration.rate_per_s, LOADS), seed=trial)
    card = judge_of(made.setup, calibration).score(made.runs.carry_out([plan], "search")[0])
    assert card is not None and card.values is not None
    return card.values


def with_arguments(placement: Placement, **arguments: Value) -> Placement:
    """The same servers with other arguments."""
    instances = tuple(replace(i, config=i.config.with_(**arguments)) for i in placement.instances)
    return replace(placement, instances=instances)
