"""Profiles from YAML: the four that ship, or a user's file. Validated when loaded; errors name the field."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from objectives.metric import METRICS
from objectives.objective import Limit, Objective
from optimizer.errors import UserError
from optimizer.profiles.fields import Fields
from optimizer.profiles.profile import Budget, LoadSpec, Profile, RelativeLimit, SpaceSpec, Tenant

SHIPPED = ("chat", "throughput", "long-context", "multitenant")


def load_profile(name_or_file: str) -> Profile:
    """A shipped profile by name, or any YAML file by path. Raises UserError naming the file and field."""
    if name_or_file in SHIPPED:
        text = files("optimizer.profiles").joinpath(f"{name_or_file}.yaml").read_text("utf-8")
        return parse_profile(text, f"{name_or_file}.yaml", name_or_file)
    path = Path(name_or_file)
    looks_like_file = path.suffix in (".yaml", ".yml") or "/" in name_or_file
    if not looks_like_file:
        raise UserError(
            f"--profile {name_or_file}: no such profile; shipped are {', '.join(SHIPPED)}, or give a .yaml file"
        )
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--profile {name_or_file}: cannot be read: {_reason(error)}") from None
    return parse_profile(text, name_or_file, path.stem)


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"


def parse_profile(text: str, source: str, default_name: str) -> Profile:
    """Check a profile's YAML text. `source` stands in every error message."""
    top = Fields(source, "", _mapping(text, source))
    instances = top.texts("instances", ["server"])
    _check_instances(top, instances)
    profile = Profile(
        name=top.text("name", default_name),
        why=top.text("why"),
        model=top.text("model"),
        gpu=top.text("gpu"),
        sharing=_sharing(top, instances),
        instances=instances,
        tenants=_tenants(top, instances),
        objectives=_objectives(top),
        limits=(limits := _limits(top))[0],
        relative_limits=limits[1],
        load=_load(top.section("load", {})),
        budget=_budget(top.section("budget", {})),
        space=_space(top.section("space", {})),
        text=text,
    )
    top.done()
    return profile


def _mapping(text: str, source: str) -> Any:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise UserError(f"{source}:{line} is not valid YAML: {problem}") from None
    if document is None:
        raise UserError(f"{source}: the file is empty; copy a shipped profile and change it")
    return document


def _check_instances(top: Fields, instances: tuple[str, ...]) -> None:
    if not instances or len(set(instances)) != len(instances):
        top.refuse("instances", list(instances), "one or more different names")
    if bad := [i for i in instances if not i.replace("-", "").replace("_", "").isalnum()]:
        top.refuse("instances", bad[0], "names of letters, digits, - and _")


def _sharing(top: Fields, instances: tuple[str, ...]) -> Any:
    if len(instances) == 1:
        return top.choice("sharing", ("exclusive",), "exclusive")
    return top.choice("sharing", ("time-slice", "mps", "mig"), "time-slice")


def _tenants(top: Fields, instances: tuple[str, ...]) -> tuple[Tenant, ...]:
    tenants = [_tenant(name, section, instances) for name, section in top.sections("tenants")]
    total = sum(t.share for t in tenants)
    if abs(total - 1.0) > 1e-6:
        top.refuse("tenants", f"shares sum to {total:g}", "shares that sum to 1")
    for instance in instances:
        if not any(t.instance == instance for t in tenants):
            top.refuse("instances", instance, "an instance that at least one tenant uses")
    return tuple(tenants)


def _tenant(name: str, section: Fields, instances: tuple[str, ...]) -> Tenant:
    tenant = Tenant(
        name=name,
        instance=section.choice("instance", instances, instances[0] if len(instances) == 1 else name),
        trace=section.text("trace"),
        share=section.number("share", 1.0, above=0, at_most=1),
        target_ttft_p99_ms=section.optional_number("target_ttft_p99_ms", above=0),
        target_itl_p99_ms=section.optional_number("target_itl_p99_ms", above=0),
        reads=section.text("reads", "-"),
    )
    section.done()
    return tenant


def _objectives(top: Fields) -> tuple[Objective, ...]:
    found = []
    for section in top.items("objectives"):
        metric = section.choice("metric", tuple(METRICS))
        direction: Any = section.choice("direction", ("maximize", "minimize"))
        section.text("why", "-")
        section.done()
        found.append(Objective(metric, direction))
    if not 1 <= len(found) <= 6 or len({o.metric for o in found}) != len(found):
        top.refuse("objectives", [o.metric for o in found], "one to six different metrics")
    return tuple(found)


def _limits(top: Fields) -> tuple[tuple[Limit, ...], tuple[RelativeLimit, ...]]:
    fixed: list[Limit] = []
    relative: list[RelativeLimit] = []
    for section in top.items("limits", []):
        metric = section.choice("metric", tuple(METRICS))
        why = section.text("why", "-")
        if section.has("at_most_times_reference"):
            relative.append(RelativeLimit(metric, section.number("at_most_times_reference", above=0), why))
        elif section.has("at_least"):
            fixed.append(Limit(metric, at_least=section.number("at_least"), why=why))
        else:
            fixed.append(Limit(metric, at_most=section.number("at_most"), why=why))
        section.done()
    return tuple(fixed), tuple(relative)


def _load(section: Fields) -> LoadSpec:
    spec = LoadSpec(
        sustain_share=section.number("sustain_share", 0.8, above=0, at_most=1),
        measured_requests=section.count("measured_requests", 600, at_least=30, at_most=100_000),
        warmup_requests=section.count("warmup_requests", 100, at_least=0, at_most=100_000),
        saturation_requests=section.count("saturation_requests", 400, at_least=30, at_most=100_000),
        stress_requests=section.count("stress_requests", 150, at_least=10, at_most=100_000),
        time_limit_s=section.number("time_limit_s", 600.0, above=0),
    )
    section.done()
    return spec


def _budget(section: Fields) -> Budget:
    budget = Budget(
        n_trials=section.count("n_trials", 60, at_least=1, at_most=100_000),
        stable_trials=section.count("stable_trials", 6, at_least=0, at_most=10_000),
        startup_trials=section.count("startup_trials", 10, at_least=1, at_most=10_000),
        noise_repeats=section.count("noise_repeats", 3, at_least=2, at_most=50),
    )
    section.done()
    return budget


def _space(section: Fields) -> SpaceSpec:
    knob: Any = section.choice(
        "memory_knob", ("kv_cache_memory_bytes", "gpu_memory_utilization"), "kv_cache_memory_bytes"
    )
    spec = SpaceSpec(
        memory_knob=knob,
        memory_span=section.number("memory_span", 0.15, at_least=0, at_most=0.9),
        advanced=section.texts("advanced", []),
        overrides=section.take("parameters", {}) or {},
    )
    if not isinstance(spec.overrides, dict):
        section.refuse("parameters", spec.overrides, "a mapping of parameter names")
    section.done()
    return spec
