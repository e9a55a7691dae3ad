"""A session: one `optimizer.run` from its command line to the exported front. Puts the parts together.

Order: check everything; claim the study's folder; start the workers; calibrate; search; confirm; answer; export.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from objectives.hypervolume import Axes
from objectives.measurement import Load
from objectives.titles import short_of
from optimizer.cluster.executor import Executor
from optimizer.describe import (
    about_study,
    front_meta,
    frozen_manifest,
    pace_notice,
    plan_notices,
    study_place,
)
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.options import SessionOptions, read_options
from optimizer.reporting.answer import Extras, answer_lines, assemble
from optimizer.reporting.front import front_json
from optimizer.reporting.front_export import export_files
from optimizer.reporting.front_table import front_text, pick_titles, print_front
from optimizer.reporting.live import Header, View, choose_view
from optimizer.reporting.member import Front, FrontMember
from optimizer.study.calibration import Calibration, Calibrator
from optimizer.study.caps import CapAdvice, advise_caps
from optimizer.study.confirmation import Confirmation, Confirmer
from optimizer.study.dashboard import StudyBoard
from optimizer.study.events import Event, Notice, StageStarted, StudyFinished, TrialFinished
from optimizer.study.isolation import Isolation, IsolationProbe
from optimizer.study.judge import Judge
from optimizer.study.opening import OpenStudy, open_study
from optimizer.study.proposer import Proposer, RandomProposer, TpeProposer
from optimizer.study.rates import RateFigure, RateProbe, Survival
from optimizer.study.record import StudyRecord
from optimizer.study.runs import Runs
from optimizer.study.search import Search, SearchPlan
from optimizer.study.searched import GridOfSpace
from optimizer.study.setup import Setup, placement_of, prepare
from optimizer.study.stages import ADVANCED, FAST, seqs_names
from optimizer.trial import StopRule
from optimizer.workers import EngineChoice, choose_engine, start_executor

INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
ALL_LOADS: tuple[Load, ...] = ("steady", "stress", "saturation")
REFRESH_EVERY = 10
"""Trials between two refreshes of front.json and of what the dashboard shows."""


def run_session(args: argparse.Namespace) -> int:
    """Exit code: 0 if a front was exported, 1 if there is no feasible configuration, 130 after Ctrl-C."""
    options = read_options(args)
    setup = prepare(options.setup)
    if options.is_explaining_capacity:
        print(setup.capacity.explain())
        return 0
    choice = choose_engine(options, setup)
    manifest = frozen_manifest(options, setup, choice)
    with open_study(study_place(options), manifest) as study:
        try:
            with start_executor(options, choice, study.name) as executor:
                session = Session(options, setup, choice, study, executor)
                try:
                    return session.run()
                finally:
                    session.close()
        except KeyboardInterrupt:
            print(f"interrupted; nothing recorded is lost, go on with: {study.resume_command}", file=sys.stderr)
            return INTERRUPTED


class Session:
    """The state of one run: the study, its executor and its view."""

    def __init__(
        self, options: SessionOptions, setup: Setup, choice: EngineChoice, study: OpenStudy, executor: Executor
    ) -> None:
        self._options, self._setup, self._choice = options, setup, choice
        self._study, self._executor = study, executor
        self._started = time.monotonic()
        self._view: View = choose_view(self._header(), is_json=options.is_json)
        self._runs = Runs(executor, study.folder, self._show)
        self._front_writer: FrontWriter | None = None

    def run(self) -> int:
        plan = plan_notices(self._setup, self._choice, self._executor.n_slots)
        for text in (*self._study.notices, self._choice.notice, *self._setup.notices, *plan):
            self._show(Notice(text))
        calibration = self._calibration()
        judge = Judge(self._setup.profile.objectives, calibration.limits, calibration.targets)
        axes = Axes(judge.objectives, calibration.values)
        record = self._study.open_record(self._setup, judge)
        writer = self._front_writer = FrontWriter(self._study, self._setup, self._choice, calibration, axes, record)
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

    def _show(self, event: Event) -> None:
        self._study.log(event)
        self._view.show(event)
        writer = self._front_writer
        if writer is not None and isinstance(event, TrialFinished):
            writer.note(event)

    def _calibration(self) -> Calibration:
        stored = self._study.stored_calibration()
        if stored is not None:
            self._show(Notice(f"calibration of this study: R = {stored.rate_per_s:.4g} requests/s ({stored.how})"))
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
            loads=setup.traffic.loads(calibration.rate_per_s, ALL_LOADS),
            n_trials=budget.n_trials,
            n_stable=budget.stable_trials if max(levels, default=1) > 1 else 0,
            n_levels=max(levels, default=1),
            floors=calibration.noise,
            hypervolume=axes.volume,
            seed=seed,
            stage_name=ADVANCED if self._is_advanced() else FAST,
            stop_rule=StopRule(),
        )
        return Search(plan, record, proposer, judge, self._executor, self._runs, self._show).run()

    def _is_advanced(self) -> bool:
        return any(p.group == "advanced" for p in self._setup.space.searched)

    def _finish(
        self, record: StudyRecord, judge: Judge, calibration: Calibration, axes: Axes, writer: FrontWriter
    ) -> tuple[Front, Extras]:
        front = writer.write(())
        confirmations = self._confirm(front, judge, calibration)
        front = writer.write(confirmations)
        traffic = self._setup.traffic
        survivals = self._survivals(front, judge, calibration)
        extras = Extras(
            calibration=calibration,
            rates=self._rates(front, judge, calibration),
            survivals=survivals,
            traffic_per_s=traffic.recorded_per_s,
            peak_per_s=traffic.peak_per_s,
            gpu_price_per_hour=self._options.gpu_price_per_hour,
            caps=self._caps(front, judge, calibration),
            isolations=self._isolations(front, calibration),
        )
        return front, extras

    def _confirm(self, front: Front, judge: Judge, calibration: Calibration) -> tuple[Confirmation, ...]:
        if not front.members:
            return ()
        self._show(StageStarted("confirmation", "the front's members once more, on traffic the search never saw"))
        is_held_out = self._setup.traffic.held_out is not None
        reference = next(r for r in self._setup.references if r.name == calibration.reference)
        return Confirmer(
            judge=judge,
            loads=self._setup.traffic.loads(calibration.rate_per_s, ALL_LOADS, is_held_out=is_held_out),
            is_held_out=is_held_out,
            steady_again=self._loads(calibration.rate_per_s, ("steady",)),
            reference=reference.placement,
            reference_values=calibration.values,
            relative={r.metric: r.times_reference for r in self._setup.profile.relative_limits},
            floors=calibration.noise,
            seed=self._options.setup.seed,
            runs=self._runs,
        ).confirm([(m.trial, self._placed(m), m.values or ()) for m in front.members])

    def _probe(self, judge: Judge, calibration: Calibration) -> RateProbe:
        return RateProbe(
            judge,
            lambda rate: self._loads(rate, ("steady",)),
            calibration.rate_per_s,
            self._options.setup.seed,
            self._runs,
        )

    def _rates(self, front: Front, judge: Judge, calibration: Calibration) -> tuple[RateFigure, ...]:
        picked = [m for m in front.members if m.picks]
        if picked:
            self._show(StageStarted("rates", "the picks below and above R"))
        return self._probe(judge, calibration).figures([(m.trial, self._placed(m)) for m in picked])

    def _survivals(self, front: Front, judge: Judge, calibration: Calibration) -> tuple[Survival, ...]:
        if not self._setup.promised or not front.members:
            return ()
        self._show(StageStarted("surviving rate", "how far up each member of the front keeps the promise"))
        members = [(m.trial, self._placed(m), self._top_rate(m, calibration)) for m in front.members]
        return self._probe(judge, calibration).survival(members)

    @staticmethod
    def _top_rate(member: FrontMember, calibration: Calibration) -> float:
        """Requests per second at which the member saturates; above it no promise on latency is kept for long."""
        requests = member.metrics.get("saturation_requests_per_s_per_gpu") or 0.0
        return max(requests, calibration.rate_per_s) * 1.1

    def _isolations(self, front: Front, calibration: Calibration) -> tuple[Isolation, ...]:
        picked = [m for m in front.members if m.picks]
        if not self._setup.profile.is_shared or not picked:
            return ()
        self._show(StageStarted("isolation", "each tenant beside a saturated neighbour and beside an idle one"))
        steady = self._loads(calibration.rate_per_s, ("steady",))[0]
        probe = IsolationProbe(steady, self._options.setup.seed, self._runs)
        return probe.measure([(m.trial, self._placed(m), m.metrics) for m in picked])

    def _caps(self, front: Front, judge: Judge, calibration: Calibration) -> tuple[CapAdvice, ...]:
        nearest = [m for m in front.nearest_misses(1) if m.values is not None]
        if front.members or not nearest:
            return ()
        self._show(StageStarted("caps", "nothing is safe: which requests break it?"))
        member, seed = nearest[0], self._options.setup.seed
        rate = calibration.rate_per_s
        return advise_caps(member.trial, self._placed(member), self._setup.traffic, rate, judge, self._runs, seed)

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
        print(f"watch: {self._study.dashboard_command}")


class FrontWriter:
    """Keeps front.json and the dashboard's picture of the study up to date."""

    def __init__(
        self,
        study: OpenStudy,
        setup: Setup,
        choice: EngineChoice,
        calibration: Calibration,
        axes: Axes,
        record: StudyRecord,
    ) -> None:
        self._study, self._setup, self._axes, self._record = study, setup, axes, record
        self._meta = front_meta(study, setup, choice, calibration)
        self._board = StudyBoard(record, about_study(study, setup, choice, calibration, axes))

    def note(self, event: TrialFinished) -> None:
        """One more trial is told."""
        self._board.after_trial(event.trial)
        if event.n_done % REFRESH_EVERY == 0:
            self.write(())

    def write(self, confirmations: Sequence[Confirmation]) -> Front:
        """The front as it stands now, as front.json."""
        front = self._assembled(confirmations)
        self._study.write_front({**self._study.exported(), "front.json": self._json(front)})
        return front

    def export(self, front: Front, lines: Sequence[str]) -> Path:
        """The final front: data, tables, one deployable file a member; and the dashboard's last refresh."""
        files = {"front.json": self._json(front), "answer.txt": front_text(front) + "\n" + "\n".join(lines) + "\n"}
        if front.members:
            files |= export_files(front, front.members, "csv")
            files |= {f"vllm/{name}": text for name, text in export_files(front, front.members, "vllm-yaml").items()}
        self._board.say(picked={m.trial: pick_titles(m) for m in front.members if m.picks})
        self._board.finish()
        return self._study.write_front(files)

    def _assembled(self, confirmations: Sequence[Confirmation]) -> Front:
        trials = self._record.trials()
        name = self._setup.baselines[0][0]
        reference = next((t.number for t in trials if t.attributes.get("baseline") == name), None)
        meta = replace(self._meta, reference=reference)
        return assemble(trials, meta, self._setup.profile.instances, self._axes, confirmations)

    @staticmethod
    def _json(front: Front) -> str:
        return json.dumps(front_json(front.trials, front.meta), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
