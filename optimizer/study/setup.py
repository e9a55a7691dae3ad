"""Setup: a command line turned into everything a study needs, before anything is started or written.

Every bad value ends here, in one line. Nothing here boots an engine, opens a study or talks to Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from objectives.objective import Limit
from objectives.slo import parse_slo
from optimizer.deployment.deployment import CurrentConfig, Deployment
from optimizer.engines.engine import Instance, Placement
from optimizer.engines.simulator.calibration import SimulatorCalibration
from optimizer.errors import UserError
from optimizer.profiles.loader import load_profile
from optimizer.profiles.profile import Profile
from optimizer.study.calibration import Reference
from optimizer.study.current import assemble_current, check_gpus, hold_current, on_load, read_currents
from optimizer.study.device import as_started, choose_device, loadable, trimmed
from optimizer.study.message_kinds import per_token
from optimizer.study.references import check_fixed_memory, defaults_of, distinct, single_server, smallest_point
from optimizer.study.sizing import adapted_to, long_enough, shortened
from optimizer.study.traffic import Traffic, TrafficOptions, prepare_traffic
from search_spaces.adjust import apply_overrides
from search_spaces.capacity import Capacity, solve_capacity
from search_spaces.config import Config
from search_spaces.hardware import GpuFacts, batch_defaults
from search_spaces.known_models import find_model
from search_spaces.locate import point_of
from search_spaces.model import ModelFacts
from search_spaces.overrides import Override, read_overrides
from search_spaces.parameter import Parameter, Value
from search_spaces.space import KV_SPLIT, Point, SearchSpace, Server, flag_of, shares_of
from search_spaces.vllm import serving_space

T = TypeVar("T")
CURRENT, DEFAULTS, SAFE, SMALLEST = "current", "vLLM defaults", "safe", "smallest"
MAX_TRIALS = 100_000
HARMLESS = ("enable_prefix_caching", "tensor_parallel_size")
SAFE_TOKENS, SAFE_SEQS, SAFE_SHARE = 2048, 64, 0.4
"""The capacity stage's safe configuration: modest budgets, at most this share of the sequences worth trying (half of
what fits at the mean length, since the grid ends at 1.25 of that), all the memory that is solved for."""


@dataclass(frozen=True)
class SetupOptions:
    """What the command line says, parsed but not yet checked against each other."""

    profile: str
    model: str | None = None
    gpu: str | None = None
    sharing: str | None = None
    current: Mapping[str, str] = field(default_factory=dict)
    """instance -> file; the key "" is for every instance that has none of its own"""
    traffic: TrafficOptions = field(default_factory=TrafficOptions)
    is_recorded_rate: bool = False
    slos: tuple[str, ...] = ()
    overrides: tuple[Override, ...] = ()
    space_file: tuple[str, Mapping[str, Any]] = ("", {})
    """(file, its mapping): the same as overrides, from YAML; the command line wins over it, it over the profile."""
    advanced: tuple[str, ...] = ()
    variants: Mapping[str, str] = field(default_factory=dict)
    n_gpus: int = 1
    n_trials: int | None = None
    seed: int = 0
    device: GpuFacts | None = None
    """What a real engine runs on; None: a simulated card, the one named."""
    calibrated: SimulatorCalibration | None = None
    """What an earlier study on this card taught; None: everything is as assumed."""
    is_smoke: bool = False
    """Every window cut to a few requests: it shows that everything runs, and its tails are single requests."""


@dataclass(frozen=True)
class Setup:
    """Everything that is known before the first boot."""

    profile: Profile
    """With the command line's model, GPU and budget in it, and percentiles the window can carry."""
    model: ModelFacts
    gpu: GpuFacts
    traffic: Traffic
    capacity: Capacity
    space: SearchSpace
    references: tuple[Reference, ...]
    """In order of preference; the first that boots is the reference."""
    baselines: tuple[tuple[str, Placement, Point | None], ...]
    """Trials 0 and 1: (name, servers, nearest point of the space)."""
    single_server: Placement | None
    promised: tuple[Limit, ...]
    """The user's own limits."""
    kept: Deployment | None
    """The user's current deployment: its untuned flags go into every export."""
    notices: tuple[str, ...]

    @property
    def served_model(self) -> str:
        """What `vllm serve` is given."""
        return self.model.name

    def place(self, point: Point) -> Placement:
        """The servers of a point."""
        return placement_of(self.profile, self.space.configs(point))

    @property
    def base_point(self) -> Point:
        """Where the stable stage starts: vLLM's token budget, no watermark, all the memory."""
        tokens, _ = batch_defaults(self.gpu)
        return {p.name: _base_value(p, tokens) for p in self.space.parameters} | self.space.fixed


def prepare(options: SetupOptions) -> Setup:
    """Check everything and put it together. Raises UserError in one line."""
    profile, load_notes = _profile(options)
    read = read_currents(profile, options.current)
    check_gpus(read, options.n_gpus)
    profile, model, model_notes = _model(profile, options, read)
    model = on_load(model, read)
    profile, gpu, device_notes = choose_device(profile, options.gpu, options.sharing, options.device)
    traffic = prepare_traffic(
        profile,
        options.traffic,
        seed=options.seed,
        is_recorded_rate=options.is_recorded_rate,
        model_takes=(model.name, model.max_position_tokens),
    )
    gpu = trimmed(gpu, model, traffic, profile)
    flags = [*(flag_of(o.name) for o in options.overrides), *(flag for c in read.values() for flag in c.config)]
    model = as_started(model, gpu, options.calibrated, flags)
    length, length_notes = _contract(options, traffic, model, read)
    space = _space(profile, options, model, gpu, traffic, length, read)
    space, loading_notes = (space, ()) if options.device is None else loadable(space)
    capacity = _capacity(profile, model, gpu, length, space.base_tensor_parallel_size)
    widest = _capacity(profile, model, gpu, length, options.n_gpus)
    if not options.is_smoke:
        profile, traffic, load_notes = long_enough(profile, traffic, widest, space)
    promised = tuple(_promise(text, profile) for text in options.slos)
    profile, kind_notes = per_token(profile, {flag_of(p.name) for p in space.searched})
    adapted, notes = adapted_to(profile, traffic, is_smoke=options.is_smoke)
    defaults = placement_of(profile, defaults_of(space))
    kv_bytes = {n: c.get("kv_cache_memory_bytes") for n, c in _configs(defaults).items()} if gpu.is_cpu else None
    current = assemble_current(read, length, kv_bytes)
    safe = placement_of(profile, _safe_configs(space))
    smallest = placement_of(profile, space.configs(space.complete(smallest_point(space)) | space.fixed))
    check_fixed_memory(space, capacity)
    placements = [(CURRENT, placement_of(profile, current.configs))] if current else []
    placements += [(DEFAULTS, defaults)]
    baselines = distinct(placements if len(placements) > 1 else [*placements, (SAFE, safe)], space)
    has_defaults = any(name == DEFAULTS for name, _ in baselines)
    return Setup(
        profile=adapted,
        model=model,
        gpu=gpu,
        traffic=traffic,
        capacity=capacity,
        space=space,
        references=tuple(
            Reference(n, p) for n, p in distinct([*placements, (SAFE, safe), (SMALLEST, smallest)], space)
        ),
        baselines=tuple((n, p, point_of(space, _configs(p)).point) for n, p in baselines),
        single_server=single_server(profile, space, length),
        promised=promised,
        kept=current.deployment if current else None,
        notices=(
            *device_notes,
            *model_notes,
            *(f"{model.name}: {note}" for note in model.notes),
            *traffic.notices,
            *length_notes,
            *space.notes,
            *loading_notes,
            *load_notes,
            *kind_notes,
            *notes,
            *(current.notices if current else ()),
            *(("your current configuration is what vLLM does by itself",) if current and not has_defaults else ()),
        ),
    )


def placement_of(profile: Profile, configs: Mapping[str, Config]) -> Placement:
    """The profile's instances with these arguments."""
    instances = tuple(Instance(name, configs[name], profile.tenants_of(name)) for name in profile.instances)
    return Placement(instances, profile.sharing)


def _profile(options: SetupOptions) -> tuple[Profile, tuple[str, ...]]:
    profile = load_profile(options.profile)
    budget = profile.budget
    if options.n_trials is not None:
        if not 1 <= options.n_trials <= MAX_TRIALS:
            raise UserError(f"--n-trials {options.n_trials}: give 1 to {MAX_TRIALS}")
        n_stable = min(budget.stable_trials, options.n_trials // 4)
        n_startup = min(budget.startup_trials, max(options.n_trials // 3, 1))
        budget = replace(budget, n_trials=options.n_trials, stable_trials=n_stable, startup_trials=n_startup)
    sharing = options.sharing or profile.sharing
    if options.sharing and not profile.is_shared:
        raise UserError(
            f"--gpu-sharing {options.sharing}: profile {profile.name} has one instance, which shares nothing"
        )
    profile = replace(
        profile,
        model=options.model or profile.model,
        gpu=options.gpu or profile.gpu,
        sharing=sharing,  # type: ignore[arg-type]
        budget=budget,
    )
    return shortened(profile) if options.is_smoke else (profile, ())


def _contract(
    options: SetupOptions, traffic: Traffic, model: ModelFacts, read: Mapping[str, CurrentConfig]
) -> tuple[int, tuple[str, ...]]:
    """max_model_len: --max-model-len as it is, else what the user admits today, else the workload's maximum and a
    margin; never beyond the model, and never the model's limit only because it is one."""
    cap, most = options.traffic.max_model_len, model.max_position_tokens
    if cap is not None and cap > most:
        raise UserError(f"--max-model-len {cap}: {model.name} takes at most {most}")
    if cap is None and traffic.longest_tokens > most:
        raise UserError(
            f"workload: the longest request has {traffic.longest_tokens} tokens, {model.name} takes at most {most};"
            " cap it (--max-model-len) or choose another model"
        )
    least = min(traffic.max_model_len, most)
    if cap is not None:
        return cap, ()
    own = [c.config.int_("max_model_len") for c in read.values() if "max_model_len" in c.config]
    kept = [n for n in own if traffic.longest_tokens <= n < most]
    if kept:
        return max(kept), (f"max_model_len stays {max(kept):,}, as you run it; this workload needs {least:,}",)
    told = (f"max_model_len {least:,} in every trial but your own ({max(own):,} there)",) if own else ()
    return least, told


def _space(
    profile: Profile,
    options: SetupOptions,
    model: ModelFacts,
    gpu: GpuFacts,
    traffic: Traffic,
    length: int,
    read: Mapping[str, CurrentConfig],
) -> SearchSpace:
    servers = [_server(profile, name, traffic, length) for name in profile.instances]
    variants = {v.name: v for v in (_variant(name, where) for name, where in options.variants.items())}
    advanced = _advanced(profile, options)
    space = _found(
        "search space",
        lambda: serving_space(
            model,
            gpu,
            servers,
            memory_knob=profile.space.memory_knob,
            memory_span=profile.space.memory_span,
            advanced=advanced,
            n_gpus=options.n_gpus,
            variants=variants,
        ),
    )
    space = hold_current(space, read)
    names = profile.instances if profile.is_shared else ()
    file, section = options.space_file
    overrides = (
        *_found("", lambda: read_overrides(profile.space.overrides, names, f"{profile.name}: space.parameters")),
        *_found("", lambda: read_overrides(section, names, f"--space {file}")),
        *options.overrides,
    )
    for override in overrides:
        if flag_of(override.name) == "max_model_len":
            raise UserError(f"{override.where}: max_model_len is a promise to requests, not a knob: --max-model-len N")
    return _found("", lambda: apply_overrides(space, overrides))


def _variant(name: str, where: str) -> ModelFacts:
    return _found(f"--model-variant {name}", lambda: find_model(where))


def _promise(text: str, profile: Profile) -> Limit:
    return _found("--slo", lambda: parse_slo(text, [t.name for t in profile.tenants]))


def _advanced(profile: Profile, options: SetupOptions) -> tuple[str, ...]:
    """`all` stands for the advanced parameters that cannot change the model's answers; the others are named or off."""
    asked = (*profile.space.advanced, *options.advanced)
    named = [n for name in asked for n in (HARMLESS if name == "all" else (name,))]
    return tuple(dict.fromkeys([*named, *(["model"] if options.variants else [])]))


def _server(profile: Profile, name: str, traffic: Traffic, length: int) -> Server:
    tenants = profile.tenants_of(name)
    weight = sum(traffic.shares.get(t, 0.0) for t in tenants) or 1.0
    mean = sum(traffic.mean_tokens_of.get(t, 0.0) * traffic.shares.get(t, 0.0) for t in tenants) / weight
    return Server(name=name, max_model_len=length, mean_request_tokens=max(mean, 1.0))


def _capacity(profile: Profile, model: ModelFacts, gpu: GpuFacts, length: int, n_gpus: int) -> Capacity:
    tokens, seqs = batch_defaults(gpu)
    return solve_capacity(
        model,
        gpu,
        max_num_batched_tokens=tokens,
        max_num_seqs=min(seqs, tokens),
        tensor_parallel_size=n_gpus,
        n_instances=len(profile.instances),
        max_model_len=length,
    )


def _model(
    profile: Profile, options: SetupOptions, read: Mapping[str, CurrentConfig]
) -> tuple[Profile, ModelFacts, tuple[str, ...]]:
    """--model, else the model of the current configuration where its facts are known, else the profile's."""
    own = next((c for c in read.values() if c.model), None)
    if options.model is not None or own is None or own.model is None:
        return profile, _found("--model", lambda: find_model(profile.model)), ()
    try:
        facts = find_model(own.model)
    except ValueError:
        note = f"{own.source}: {own.model} is not known here; the study is about {profile.model} (--model NAME|DIR)"
        return profile, _found("--model", lambda: find_model(profile.model)), (note,)
    return replace(profile, model=own.model), facts, (f"{own.source}: the model is {own.model}",)


def _safe_configs(space: SearchSpace) -> dict[str, Config]:
    """The point nearest to modest budgets with all the memory."""
    point = {p.name: _base_value(p, SAFE_TOKENS) for p in space.parameters}
    for p in space.parameters:
        top = p.values()[-1]
        if flag_of(p.name) == "max_num_seqs" and isinstance(top, int):
            point[p.name] = p.nearest(min(SAFE_SEQS, max(1, round(SAFE_SHARE * top))))
    return space.configs(point | space.fixed)


def _base_value(parameter: Parameter, tokens: int) -> Value:
    values = parameter.values()
    flag = flag_of(parameter.name)
    if flag == "max_num_batched_tokens":
        return parameter.nearest(tokens)
    if flag in ("kv_cache_memory_bytes", "gpu_memory_utilization", "max_num_seqs"):
        return values[-1]
    if flag == KV_SPLIT:
        return min(values, key=_unevenness)
    if parameter.group == "advanced" and parameter.default in values:
        return parameter.default
    return values[0]


def _unevenness(split: Value) -> float:
    """How far a `kv_split` is from equal shares."""
    n = split.count(":") + 1 if isinstance(split, str) else 2
    return max(abs(share - 1 / n) for share in shares_of(split, n))


def _configs(placement: Placement) -> dict[str, Config]:
    return {i.name: i.config for i in placement.instances}


def _found(where: str, find: Callable[[], T]) -> T:
    """Run a check of `search_spaces` or `objectives`; its ValueError becomes the user's one line."""
    try:
        return find()
    except ValueError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from None
