"""A study put into words and figures for its manifest, its exports and its dashboard."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict

from objectives.hypervolume import Axes
from optimizer.options import SessionOptions
from optimizer.profiles.profile import Profile
from optimizer.reporting.member import FrontMeta
from optimizer.study.calibration import Calibration
from optimizer.study.dashboard import About, many_objectives
from optimizer.study.judge import BOOT, UNSUSTAINED
from optimizer.study.manifest import Manifest, package_versions
from optimizer.study.opening import OpenStudy, StudyPlace, settings_of
from optimizer.study.runs import Runs
from optimizer.study.setup import Setup
from optimizer.study.storage import mask
from optimizer.workers import EngineChoice
from search_spaces.hardware import GIB


def study_place(options: SessionOptions) -> StudyPlace:
    return StudyPlace(options.study, options.setup.profile, options.studies, options.storage, options.is_resume)


def frozen_manifest(options: SessionOptions, setup: Setup, choice: EngineChoice) -> Manifest:
    """What decides what the study's numbers mean. `study` and `created` are filled in when it is opened."""
    profile = setup.profile
    limits = [limit.text for limit in (*profile.limits, *setup.promised)]
    limits += [f"{r.metric} <= {r.times_reference:g} x reference" for r in profile.relative_limits]
    return Manifest(
        study="",
        profile=profile.name,
        profile_text=profile.text,
        objectives=tuple(f"{o.direction} {o.metric}" for o in profile.objectives),
        limits=tuple(limits),
        space_fingerprint=setup.space.fingerprint,
        space={p.name: [*map(str, p.values())] for p in setup.space.searched},
        workload={"traffic": setup.traffic.fingerprint, "tenants": str(_shares(setup)), **_load_of(profile)},
        model=setup.model.name,
        model_fingerprint=hashlib.sha256(repr(setup.model).encode()).hexdigest()[:12],
        gpu=setup.gpu.name,
        engine=choice.identity,
        sharing=profile.sharing,
        sampler=options.sampler,
        seed=options.setup.seed,
        settings=settings_of(
            noise=options.noise if choice.is_simulated else None,
            rate="recorded" if options.setup.is_recorded_rate else options.rate_per_s,
            max_model_len=setup.space.servers[0].max_model_len,
            baselines={name: placement.fingerprint for name, placement, _ in setup.baselines},
            **options.settings(),
        ),
        n_trials=profile.budget.n_trials,
        n_workers=options.n_workers or 0,
        storage=mask(options.storage or ""),
        versions={**package_versions(), "vllm": choice.vllm_version},
        command=tuple(mask(word) for word in options.command if word != "--resume"),
        directory=os.getcwd(),
    )


def _load_of(profile: Profile) -> dict[str, str]:
    return {name.replace("_", " "): str(value) for name, value in asdict(profile.load).items()}


def _shares(setup: Setup) -> dict[str, float]:
    return {t.name: t.share for t in setup.profile.tenants}


def plan_notices(setup: Setup, choice: EngineChoice, n_slots: int) -> tuple[str, ...]:
    """What the study is about to do, before its first boot: memory, cores, boots and loads."""
    budget, load, capacity = setup.profile.budget, setup.profile.load, setup.capacity
    low, high = (f"{b / GIB:.1f}" for b in (capacity.kv_bytes.low, capacity.kv_bytes.high))
    tokens = capacity.tokens_in(capacity.ceiling_bytes)
    n_cores = os.cpu_count() or 1
    servers = len(setup.profile.instances)
    needed = "" if choice.is_simulated else f"; a server of vLLM wants 3 of them, {servers * n_slots} run at once"
    before = 2 + budget.noise_repeats + (1 if setup.single_server is not None else 0)
    warning = many_objectives(len(setup.profile.objectives))
    return (
        *([warning.replace("**", "")] if warning else []),
        f"memory: {low} to {high} GiB of KV cache, searched up to {capacity.ceiling_bytes / GIB:.1f} GiB"
        f" ({tokens:,} tokens); --explain-capacity shows the arithmetic",
        f"cores: {n_cores} here for {n_slots} at a time and this process{needed}",
        f"plan: {budget.n_trials} trials, one boot each, replaying {load.measured_requests:,} steady,"
        f" {load.stress_requests:,} stress and {load.saturation_requests:,} saturation requests; about {before} boots"
        " before them to calibrate, then the front's members twice more",
    )


def pace_notice(runs: Runs, n_trials: int, n_slots: int, choice: EngineChoice) -> str:
    """What a run costs and, on a real engine, how long the search will take, from what calibration took."""
    n = max(runs.n_kept, 1)
    engine_s, wall_s = runs.engine_s / n, runs.wall_s / n
    if choice.is_simulated:
        return f"a run is about {engine_s:.0f} s of virtual engine time, simulated in {wall_s:.2g} s"
    left_s = wall_s * n_trials / max(n_slots, 1)
    return f"a run takes about {wall_s:.0f} s: {left_s / 60:.0f} min for {n_trials} trials, {n_slots} at a time"


def front_meta(study: OpenStudy, setup: Setup, choice: EngineChoice, calibration: Calibration) -> FrontMeta:
    objectives = setup.profile.objectives
    return FrontMeta(
        study=study.name,
        model=setup.served_model,
        gpu=setup.gpu.name,
        engine=choice.identity,
        is_simulated=choice.is_simulated,
        objectives=objectives,
        workload_hash=setup.traffic.fingerprint,
        profile=setup.profile.name,
        workload=setup.traffic.name,
        rate_per_s=calibration.rate_per_s,
        versions={**package_versions(), "vllm": choice.vllm_version},
        noise={o.metric: n for o, n in zip(objectives, calibration.noise, strict=True)},
        sharing=setup.profile.sharing,
        kept=setup.kept,
    )


def about_study(study: OpenStudy, setup: Setup, choice: EngineChoice, calibration: Calibration, axes: Axes) -> About:
    """What the dashboard's note says about the study."""
    profile = setup.profile
    return About(
        title=f"{study.name}: {profile.name}",
        facts={
            "profile": profile.why,
            "model": setup.model.name,
            "GPU": setup.gpu.name,
            "engine": choice.identity,
            "workload": f"{setup.traffic.name} ({setup.traffic.fingerprint})",
            "R": f"{calibration.rate_per_s:.4g} requests/s, {calibration.how}",
            "reference": calibration.reference,
        },
        meanings={
            **{limit.text: limit.why for limit in calibration.limits},
            UNSUSTAINED: "the engine did not keep up with R",
            BOOT: "the configuration did not start, or died",
        },
        commands=(study.resume_command, study.export_command, study.report_command, study.dashboard_command),
        is_simulated=choice.is_simulated,
        n_trials=profile.budget.n_trials,
        floors=calibration.noise,
        axes=axes,
    )
