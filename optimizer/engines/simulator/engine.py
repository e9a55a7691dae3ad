"""The simulator as an Engine: vLLM 0.32's scheduler in virtual time, on a card described by facts.

It never sleeps, and opens no file but a step log that is asked for. What it returns is labelled simulated by
`is_simulated` and `identity`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np

import optimizer
from objectives.measurement import EngineSample, PhaseMeasurement, RequestRecord
from optimizer.engines.engine import BootReport, Instance, LoadPlan, Placement, boot_key
from optimizer.engines.simulator import boot, colocation, recording
from optimizer.engines.simulator.basis import uncalibrated
from optimizer.engines.simulator.noise import StepNoise
from optimizer.engines.simulator.prefixes import NO_PREFIX, content_keys
from optimizer.engines.simulator.replica import Gauges, Replica
from optimizer.engines.simulator.residuals import ByTp, corrected, hash_of, residuals_for
from optimizer.engines.simulator.scheduler import Scheduler
from optimizer.engines.simulator.sequence import Sequence
from optimizer.engines.simulator.settings import LIVE, Settings, resolve
from optimizer.engines.simulator.step_log import StepLog, log_path
from optimizer.engines.simulator.step_time import Roofline, StepShape, StepTimeModel
from optimizer.errors import EngineFailed, UserError
from optimizer.workload.trace import Trace
from search_spaces.config import Config
from search_spaces.hardware import GpuFacts
from search_spaces.model import ModelFacts


@dataclass(frozen=True)
class SimulatorSpec:
    """What a simulated engine is made from. Picklable."""

    model: ModelFacts
    gpu: GpuFacts
    noise: float = 1.0
    """Scale of the noise (boot to boot and per step); 0 or False: none."""
    variants: Mapping[str, ModelFacts] = field(default_factory=dict)
    """Value of a configuration's `model` argument -> that checkpoint's facts; others are `model`."""
    n_clients: int | None = None
    """Closed loop: so many requests of the trace arrive as it says, the others each when one before it is answered
    (their arrival times are ignored). None: open loop, as studies and real servers are loaded."""
    residuals: ByTp = field(default_factory=dict)
    """Learned from real runs (`fit`), by tensor-parallel size; none: step times are the table's."""
    step_log: str | None = None
    """Path of the file that every engine step is written to; `{load}` and `{instance}` in it are filled in. Nothing of
    the result depends on it."""
    is_stepwise: bool = False
    """Walk every step request by request, without short cuts: slow, for tests."""


class SimulatedEngine:
    """Implements `optimizer.engines.engine.Engine`."""

    def __init__(self, spec: SimulatorSpec) -> None:
        self._spec = spec
        self._placement: Placement | None = None
        self._booted: tuple[boot.Booted, ...] = ()
        self._active: tuple[boot.Booted, ...] = ()
        """As booted, with live changes applied."""
        self._step_times: tuple[StepTimeModel, ...] = ()
        self._seed = 0
        self._now_s = 0.0

    @property
    def identity(self) -> str:
        learned = f", step times {hash_of(self._spec.residuals)}" if self._spec.residuals else ""
        return f"simulator {optimizer.__version__} (vLLM 0.32 scheduler{learned})"

    @property
    def is_simulated(self) -> bool:
        return True

    def boot(self, placement: Placement, seed: int) -> BootReport:
        self.stop()
        spec = self._spec
        colocation.speed_of(placement.sharing, len(placement.instances))
        booted = boot.boot_instances(placement, [self._model_of(i) for i in placement.instances], spec.gpu)
        self._placement, self._booted, self._active, self._seed = placement, booted, booted, seed
        self._step_times = tuple(_step_time(b, spec) for b in booted)
        return BootReport(
            seconds=boot.boot_seconds(booted),
            kv_tokens={b.instance.name: b.kv_tokens for b in booted},
            kv_blocks={b.instance.name: b.n_blocks for b in booted},
            free_memory_bytes=boot.min_free_bytes(booted, spec.gpu, is_stress=False),
            facts={
                "gpu": spec.gpu.name,
                "uncalibrated": sorted({text for b in booted for text in _uncalibrated(b, spec.gpu)}),
                "residuals": {tp: r.to_json() for tp, r in spec.residuals.items()},
                "model": ", ".join(dict.fromkeys(b.model.name for b in booted)),
                "sharing": placement.sharing,
                "ignored_arguments": sorted({name for b in booted for name in b.settings.ignored}),
            },
        )

    def holds(self, placement: Placement) -> bool:
        """Never: booting costs no real time, and every trial has a seed of its own for its boot's noise."""
        return False

    def configure(self, placement: Placement) -> None:
        before = self._require_boot()
        if boot_key(placement, LIVE) != boot_key(before, LIVE):
            raise EngineFailed(
                "arguments", "configure", "only a new boot can change these arguments", is_config_fault=False
            )
        pairs = zip(self._booted, placement.instances, strict=True)
        self._active = tuple(boot.move_live(booted, instance, self._spec.gpu) for booted, instance in pairs)

    def reset(self) -> None:
        """Every load starts on empty caches; nothing outlives a replay here."""
        self._require_boot()
        self._now_s = 0.0

    def replay(self, plan: LoadPlan) -> PhaseMeasurement:
        placement = self._require_boot()
        if plan.load == "stress":
            boot.check_stress(self._active, self._spec.gpu)
        rows = _rows_by_instance(plan.trace, placement)
        replicas: list[Replica] = []
        sequences: dict[int, Sequence] = {}
        for number in range(len(self._active)):
            replica, own = self._replica(number, plan, rows[number])
            replicas.append(replica)
            sequences |= own
        speed = colocation.speed_of(placement.sharing, len(replicas))
        start_s = float(plan.trace.arrival_s[0]) if len(plan.trace) else 0.0
        with contextlib.ExitStack() as logs:
            self._open_logs(plan, replicas, logs)
            end_s = colocation.run(replicas, speed, start_s, plan.time_limit_s, self._spec.is_stepwise)
        self._now_s = end_s
        return self._measure(plan, replicas, rows, sequences, end_s)

    def sample(self) -> tuple[EngineSample, ...]:
        """Between loads every instance is idle."""
        self._require_boot()
        idle = Gauges(self._now_s, 0, 0, 0.0, 0)
        return tuple(recording.as_sample(b.instance.name, idle) for b in self._active)

    def stop(self) -> None:
        self._placement, self._booted, self._active, self._step_times = None, (), (), ()

    def logs(self) -> Mapping[str, str]:
        return {}

    # ---------------------------------------------------------------------------------------------------------------

    def _model_of(self, instance: Instance) -> ModelFacts:
        return self._spec.variants.get(str(instance.config.get("model")), self._spec.model)

    def _require_boot(self) -> Placement:
        if self._placement is None:
            raise EngineFailed("not_booted", None, "boot the engine first", is_config_fault=False)
        return self._placement

    def _open_logs(self, plan: LoadPlan, replicas: Seq[Replica], logs: contextlib.ExitStack) -> None:
        for replica, booted in zip(replicas, self._active, strict=True):
            if self._spec.step_log is not None:
                path = log_path(self._spec.step_log, plan.load, replica.name)
                replica.step_log, replica.tp = logs.enter_context(StepLog(path)), booted.settings.tp

    def _replica(self, number: int, plan: LoadPlan, rows: Seq[int]) -> tuple[Replica, dict[int, Sequence]]:
        booted, trace = self._active[number], plan.trace
        budgets, step_time = booted.settings.budgets, self._step_times[number]
        tp = booted.settings.tp
        inbound_s = recording.inbound_s(tp) + residuals_for(self._spec.residuals, tp).front_end_s
        longest = budgets.max_model_len
        served = [row for row in rows if trace.prompt_tokens[row] < longest]
        is_cached = budgets.is_prefix_cached
        prefixes = content_keys(trace, served, budgets.block_size) if is_cached else [NO_PREFIX] * len(served)
        sequences = [
            Sequence(row, prompt, min(output, longest - prompt), arrival + inbound_s, shared)
            for row, prompt, output, arrival, shared in zip(
                served,
                trace.prompt_tokens[served].tolist(),
                trace.output_tokens[served].tolist(),
                trace.arrival_s[served].tolist(),
                prefixes,
                strict=True,
            )
        ]
        name = booted.instance.name
        replica = Replica(
            name,
            Scheduler(budgets, booted.n_blocks, step_time.windows, self._spec.is_stepwise),
            step_time,
            StepNoise(self._seed, name, plan.load, float(self._spec.noise)),
            sequences,
            frozenset(row for row in rows if row >= plan.n_warmup),
            self._spec.n_clients,
            recording.OUTBOUND_S + inbound_s,
        )
        for row in set(rows) - set(served):
            replica.reject(
                row, f"HTTP 400: prompt too long ({trace.prompt_tokens[row]} tokens, max_model_len {longest})"
            )
        return replica, {s.index: s for s in sequences}

    def _measure(
        self,
        plan: LoadPlan,
        replicas: Seq[Replica],
        rows: Seq[Seq[int]],
        sequences: dict[int, Sequence],
        stopped_s: float,
    ) -> PhaseMeasurement:
        if self._spec.n_clients is not None:
            plan = replace(plan, trace=_as_sent(plan.trace, sequences, self._active[0].settings.tp))
        is_cut = any(r.n_open for r in replicas)
        cut_s = plan.time_limit_s if is_cut else float("inf")
        records: list[RequestRecord] = []
        counters = {}
        for replica, own in zip(replicas, rows, strict=True):
            ends = np.asarray(replica.step_ends_s)
            counters[replica.name] = recording.counters_of(
                replica, plan.trace, [sequences[row] for row in own if row in sequences], ends
            )
            for row in own:
                if row >= plan.n_warmup:
                    records.append(recording.record(plan.trace, row, sequences.get(row), replica, ends, cut_s))
        records.sort(key=lambda r: r.request_id)
        last = max((float(r.token_times_s[-1]) for r in records if r.token_times_s.size), default=stopped_s)
        end_s = plan.time_limit_s if is_cut else last
        window = recording.counted_window(plan, replicas, records, end_s)
        return PhaseMeasurement(
            load=plan.load,
            records=tuple(records),
            n_gpus=self._active[0].settings.tp,
            offered_per_s=plan.offered_per_s,
            counted_from_s=window.from_s,
            counted_until_s=window.until_s,
            end_s=end_s,
            samples=tuple(s for r in replicas for s in recording.samples_of(r)),
            counters=counters,
            min_free_memory_bytes=boot.min_free_bytes(self._active, self._spec.gpu, plan.load == "stress"),
            was_running_set_full=window.was_full,
            cut_reason=f"time limit of {plan.time_limit_s:g} s" if is_cut else None,
        )


def step_time_of(instance: Instance, spec: SimulatorSpec, tp: int) -> StepTimeModel:
    """The uncorrected model of a server with these arguments, on `tp` cards."""
    config = Config({**instance.config, "tensor_parallel_size": tp})
    model = spec.variants.get(str(config.get("model")), spec.model)
    return Roofline(model, spec.gpu, _shape(resolve(config, model, spec.gpu)))


def _step_time(booted: boot.Booted, spec: SimulatorSpec) -> StepTimeModel:
    model = Roofline(booted.model, spec.gpu, _shape(booted.settings))
    return corrected(model, residuals_for(spec.residuals, booted.settings.tp))


def _uncalibrated(booted: boot.Booted, gpu: GpuFacts) -> tuple[str, ...]:
    return uncalibrated(booted.model, gpu, booted.settings.tp, booted.settings.kv_dtype_bytes)


def _shape(settings: Settings) -> StepShape:
    budgets = settings.budgets
    return StepShape(
        max_num_batched_tokens=budgets.max_num_batched_tokens,
        max_num_seqs=budgets.max_num_seqs,
        tp=settings.tp,
        is_eager=settings.is_eager,
        is_async=budgets.is_async,
        kv_dtype_bytes=settings.kv_dtype_bytes,
        max_graph_tokens=settings.max_graph_tokens,
    )


def _as_sent(trace: Trace, sequences: Mapping[int, Sequence], tp: int) -> Trace:
    """Closed loop: arrivals as they came about."""
    inbound_s = recording.INBOUND_TP_S if tp > 1 else recording.INBOUND_S
    sent = trace.arrival_s.copy()
    for row, sequence in sequences.items():
        sent[row] = sequence.arrival_s - inbound_s
    return trace.at(np.maximum.accumulate(sent))


def _rows_by_instance(trace: Trace, placement: Placement) -> list[list[int]]:
    """Row numbers per instance. Raises UserError for a tenant with requests that no instance serves."""
    owner = np.full(len(trace.tenants), -1)
    for number, instance in enumerate(placement.instances):
        for index, tenant in enumerate(trace.tenants):
            if tenant in instance.tenants:
                owner[index] = number
    of_row = owner[trace.tenant] if len(trace) else np.empty(0, int)
    if np.any(of_row < 0):
        lost = trace.tenants[int(trace.tenant[int(np.argmax(of_row < 0))])]
        raise UserError(f"no instance serves tenant {lost!r}; name it in one instance's tenants")
    return [np.flatnonzero(of_row == number).tolist() for number in range(len(placement.instances))]
