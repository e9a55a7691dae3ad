"""A session: one `optimizer.run` from its command line to the exported front. Puts the parts together.

Order: check everything; claim the study's folder; start the workers; calibrate; search; confirm; answer; export.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from objectives.hypervolume import Axes
from objectives.measurement import Load
from objectives.titles import short_of
from optimizer.cluster.executor import Executor, NoSlotLeft
from optimizer.describe import (
    about_study,
    front_meta,
    frozen_manifest,
    pace_notice,
    plan_notices,
    study_place,
)
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.errors import UserError
from optimizer.last_probes import LastProbes
from optimizer.options import SessionOptions, read_options
from optimizer.reporting.answer import Extras, answer_lines
from optimizer.reporting.front_table import print_front
from optimizer.reporting.front_writer import FrontWriter
from optimizer.reporting.live import Header, View, choose_view
from optimizer.reporting.member import Front, FrontMember
from optimizer.reporting.metrics_page import MetricsPage, Readings, StudyLabels, metrics_page
from optimizer.study.calibration import Calibration, Calibrator
from optimizer.study.confirmation import Confirmation, Confirmer, Scope, scope_of, to_confirm
from optimizer.study.dashboard import StudyBoard
from optimizer.study.events import Event, Notice, StageStarted, StudyFinished, TrialFinished
from optimizer.study.judge import Judge
from optimizer.study.opening import OpenStudy, open_study
from optimizer.study.proposer import Proposer, RandomProposer, TpeProposer
from optimizer.study.record import StudyRecord
from optimizer.study.runs import PAUSE_S, Runs
from optimizer.study.search import Search, SearchPlan
from optimizer.study.searched import GridOfSpace
from optimizer.study.setup import Setup, placement_of, prepare
from optimizer.study.side_by_side import hold_to
from optimizer.study.stages import ADVANCED, FAST, seqs_names
from optimizer.study.starts import memory_check
from optimizer.trial import LOAD_ORDER, StopRule
from optimizer.workers import EngineChoice, choose_engine, find_hardware, start_executor

MAX_ROUNDS = 3
"""Rounds of confirmation, the second and third for what takes the place of members that did not hold."""
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


def run_session(args: argparse.Namespace) -> int:
    """Exit code: 0 if a front was exported, 1 if there is no feasible configuration, 130 after Ctrl-C."""
    options = read_options(args)
    hardware = find_hardware(options)
    setup = prepare(replace(options.setup, device=hardware.device))
    if options.is_explaining_capacity:
        print(setup.capacity.explain())
        return 0
    _check_rate(options, setup)
    choice, setup = choose_engine(options, setup, hardware)
    manifest = frozen_manifest(options, setup, choice)
    with metrics_page(options.metrics_port) as page, open_study(study_place(options), manifest) as study:
        try:
            with start_executor(options, choice, study.name) as executor:
                session = Session(options, setup, choice, study, executor, page)
                try:
                    return session.run()
                finally:
                    session.close()
        except NoSlotLeft as error:
            study.forgive_running()
            raise NoSlotLeft(f"{error}; nothing recorded is lost, go on with: {study.resume_command}") from None
        except KeyboardInterrupt:
            study.forgive_running()
            print(f"interrupted; nothing recorded is lost, go on with: {study.resume_command}", file=sys.stderr)
            return INTERRUPTED


def _check_rate(options: SessionOptions, setup: Setup) -> None:
    """A rate that the trace cannot be laid out at is refused before anything starts."""
    if options.rate_per_s is None:
        return
    try:
        setup.traffic.loads(options.rate_per_s, ("steady", "stress"))
    except UserError as error:
        raise UserError(f"--rate: {error}") from None


class Session:
    """The state of one run: the study, its executor and its view."""

    def __init__(
        self,
        options: SessionOptions,
        setup: Setup,
        choice: EngineChoice,
        study: OpenStudy,
        executor: Executor,
        page: MetricsPage | None = None,
    ) -> None:
        self._options, self._setup, self._choice = options, setup, choice
        self._study, self._executor = study, executor
        self._started = time.monotonic()
        self._scope: Scope = scope_of(options.confirm, is_simulated=choice.is_simulated)
        self._view: View = choose_view(self._header(), is_json=options.is_json)
        pause_s = 0.0 if choice.is_simulated else PAUSE_S
        self._runs = Runs(executor, study.folder, self._show, pause_s=pause_s)
        self._front_writer: FrontWriter | None = None
        self._page = page
        if page is not None:
            page.begin(self._labels(), self._readings())

    def run(self) -> int:
        plan = plan_notices(self._setup, self._choice, self._executor.n_slots)
        if self._page is not None:
            self._show(Notice(f"metrics: {self._page.url}"))
        for text in (*self._study.notices, self._choice.notice, *self._setup.notices, *plan):
            self._show(Notice(text))
        calibration = self._calibration()
        judge = Judge(self._setup.profile.objectives, calibration.limits, calibration.targets)
        axes = Axes(judge.objectives, calibration.values)
        record = self._study.open_record(self._setup, judge)
        about = about_study(self._study, self._setup, self._choice, calibration, axes)
        meta = front_meta(self._study, self._setup, self._choice, calibration)
        board, instances = StudyBoard(record, about, self._study.folder), self._setup.profile.instances
        writer = self._front_writer = FrontWriter(self._study, record, board, meta, instances, axes)
        reason = self._search(record, judge, axes, calibration)
        front, extras = self._finish(record, judge, calibration, axes, writer)
        return self._answer(front, extras, reason, record, writer)

    def close(self) -> None:
        self._view.close()

    # parts

    def _header(self) -> Header:
        profile, setup = self._setup.profile, self._setup
        title = f"study {self._study.name}: profile {profile.name}, {setup.model.name} on {setup.gpu.name}"
        simulated = " (SIMULATED)" if self._choice.is_simulated else ""
        names = tuple(short_of(o.metric) for o in profile.objectives)
        return Header(title + simulated, names, self._study.dashboard_command)

    def _labels(self) -> StudyLabels:
        profile, setup, choice = self._setup.profile, self._setup, self._choice
        return StudyLabels(
            self._study.name, profile.name, setup.model.name, setup.gpu.name, choice.identity, choice.is_simulated
        )

    def _readings(self) -> Readings:
        executor = self._executor
        return Readings(lambda: self._runs.engine_s, self._options.setup.n_gpus, lambda: executor.worker_states)

    def _show(self, event: Event) -> None:
        self._study.log(event)
        if self._page is not None:
            self._page.show(event)
        self._view.show(event)
        writer = self._front_writer
        if writer is not None and isinstance(event, TrialFinished):
            writer.note(event)

    def _calibration(self) -> Calibration:
        stored = self._study.stored_calibration()
        if stored is not None:
            self._show(Notice(f"calibration of this study: R = {stored.rate_per_s:.4g} requests/s ({stored.how})"))
            hold_to(stored.n_slots, self._runs, self._show)
            return stored
        self._show(StageStarted("calibration", "what the reference carries, before trial 0"))
        rate = self._options.rate_per_s
        if self._options.setup.is_recorded_rate:
            rate = self._setup.traffic.recorded_per_s
        calibration = Calibrator(
            profile=self._setup.profile,
            references=self._setup.references,
            loads=self._loads,
            shares=self._setup.traffic.shares,
            own_limits=self._setup.promised,
            single_server=self._setup.single_server,
            seed=self._options.setup.seed,
            runs=self._runs,
            listener=self._show,
            is_real=not self._choice.is_simulated,
        ).calibrate(rate)
        self._study.save_calibration(calibration)
        noise = ", ".join(
            f"{short_of(o.metric)} {n:.1%}"
            for o, n in zip(self._setup.profile.objectives, calibration.noise, strict=True)
        )
        self._show(Notice(f"R = {calibration.rate_per_s:.4g} requests/s: {calibration.how}"))
        self._show(Notice(f"smallest differences this study can tell apart: {noise}"))
        n_trials = self._setup.profile.budget.n_trials
        self._show(Notice(pace_notice(self._runs, n_trials, self._executor.n_slots, self._choice)))
        return calibration

    def _loads(self, rate: float, names: Sequence[Load]) -> tuple[LoadPlan, ...]:
        return self._setup.traffic.loads(rate, names)

    def _search(self, record: StudyRecord, judge: Judge, axes: Axes, calibration: Calibration) -> str:
        setup, budget, seed = self._setup, self._setup.profile.budget, self._options.setup.seed
        space = GridOfSpace(setup.space)
        directions = [o.direction for o in judge.objectives]
        proposer: Proposer = RandomProposer(space, seed)
        if self._options.sampler == "tpe":
            proposer = TpeProposer(space, directions, seed, budget.startup_trials)
        levels = [len(space.grid[name]) for name in seqs_names(space.grid)]
        plan = SearchPlan(
            baselines=setup.baselines,
            base_point=setup.base_point,
            grid=space.grid,
            place=setup.place,
            loads=setup.traffic.loads(calibration.rate_per_s, LOAD_ORDER),
            n_trials=budget.n_trials,
            n_stable=budget.stable_trials if max(levels, default=1) > 1 else 0,
            n_levels=max(levels, default=1),
            floors=calibration.noise,
            hypervolume=axes.volume,
            seed=seed,
            stage_name=ADVANCED if self._is_advanced() else FAST,
            stop_rule=StopRule(),
            cannot_start=None if self._choice.is_simulated else memory_check(self._study.folder, setup, self._show),
        )
        return Search(plan, record, proposer, judge, self._executor, self._runs, self._show).run()

    def _is_advanced(self) -> bool:
        return any(p.group == "advanced" for p in self._setup.space.searched)

    def _finish(
        self, record: StudyRecord, judge: Judge, calibration: Calibration, axes: Axes, writer: FrontWriter
    ) -> tuple[Front, Extras]:
        front = self._confirmed(writer, judge, calibration)
        traffic = self._setup.traffic
        probes = LastProbes(
            self._setup,
            self._options.setup.seed,
            self._scope,
            self._choice.is_simulated,
            self._runs,
            judge,
            calibration,
            self._show,
        )
        survivals = probes.survivals(front)
        extras = Extras(
            calibration=calibration,
            rates=probes.rates(front),
            survivals=survivals,
            traffic_per_s=traffic.recorded_per_s,
            peak_per_s=traffic.peak_per_s,
            gpu_price_per_hour=self._options.gpu_price_per_hour,
            n_gpus=self._options.setup.n_gpus,
            caps=probes.caps(front),
            isolations=probes.isolations(front),
            texts=probes.texts(front),
        )
        return front, extras

    def _confirmed(self, writer: FrontWriter, judge: Judge, calibration: Calibration) -> Front:
        """The front with every member measured again. Where one does not hold, what it alone kept off the front takes
        its place and is measured again too, a few rounds long."""
        front, found = writer.write(()), list[Confirmation]()
        for _ in range(MAX_ROUNDS):
            fresh = to_confirm(front.members, self._scope, {c.trial for c in found})
            if not fresh:
                break
            found += self._confirm(fresh, judge, calibration)
            front = writer.write(found)
        return front

    def _confirm(
        self, members: Sequence[FrontMember], judge: Judge, calibration: Calibration
    ) -> tuple[Confirmation, ...]:
        self._show(StageStarted("confirmation", "the front's members once more, on traffic the search never saw"))
        is_held_out = self._setup.traffic.held_out is not None
        reference = next(r for r in self._setup.references if r.name == calibration.reference)
        return Confirmer(
            judge=judge,
            loads=self._setup.traffic.loads(calibration.rate_per_s, LOAD_ORDER, is_held_out=is_held_out),
            is_held_out=is_held_out,
            steady_again=self._loads(calibration.rate_per_s, ("steady",)),
            reference=reference.placement,
            reference_values=calibration.values,
            relative={r.metric: r.times_reference for r in self._setup.profile.relative_limits},
            floors=calibration.noise,
            seed=self._options.setup.seed,
            runs=self._runs,
        ).confirm([(m.trial, self._placed(m), m.values or ()) for m in members])

    def _placed(self, member: FrontMember) -> Placement:
        return placement_of(self._setup.profile, member.configs)

    def _answer(self, front: Front, extras: Extras, reason: str, record: StudyRecord, writer: FrontWriter) -> int:
        lines = answer_lines(front, extras)
        path = writer.export(front, lines)
        trials = [t for t in record.trials() if t.is_finished]
        self._show(
            StudyFinished(
                n_trials=len(trials),
                n_feasible=sum(t.is_feasible for t in trials),
                n_front=len(front.members),
                reason=reason,
                wall_s=time.monotonic() - self._started,
                engine_s=self._runs.engine_s,
                paths=(str(path),),
            )
        )
        self._view.close()
        if not self._options.is_json:
            self._print(front, lines)
        return 0 if front.members else 1

    def _print(self, front: Front, lines: Sequence[str]) -> None:
        print()
        print_front(front, sys.stdout)
        print("\n".join(lines))
        if front.members:
            print(f"exported: {self._study.folder.front_path}")
            print(f"take one away: {self._study.export_command}")
        print(f"read why: {self._study.report_command}")
        print(f"watch: {self._study.dashboard_command}")
