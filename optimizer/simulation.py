"""One configuration on a simulated card: read everything, boot, replay one load, print. Starts nothing."""

from __future__ import annotations

import argparse
import difflib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from objectives.measurement import Load, Measurement
from optimizer.deployment.current import read_current
from optimizer.deployment.secrets import is_secret_name
from optimizer.deployment.vllm_flags import flag_of
from optimizer.engines.engine import Instance, LoadPlan, Placement, Sharing
from optimizer.engines.simulator.calibration import calibration_for
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.engines.simulator.settings import MODELLED
from optimizer.engines.simulator.step_log import log_path
from optimizer.errors import EngineFailed, UserError
from optimizer.options import MAX_SEED, MIN_RATE_PER_S, named_files
from optimizer.reporting.simulated import Refused, Simulated, refused_text, simulated_text
from optimizer.workload.context import ContextContract, fit_context
from optimizer.workload.loads import saturation, steady, stress
from optimizer.workload.mix import merge
from optimizer.workload.packaged import find_trace
from optimizer.workload.reader import open_trace
from optimizer.workload.trace import Trace
from optimizer.workload.window import choose_window
from search_spaces.capacity import DEFAULT_UTILIZATION, Capacity, solve_capacity
from search_spaces.config import Config
from search_spaces.hardware import GpuFacts, find_gpu
from search_spaces.known_models import find_model
from search_spaces.memory_use import demand_of, kv_dtype_bytes
from search_spaces.model import ModelFacts
from search_spaces.overrides import parse_overrides
from search_spaces.parameter import Value

ONE = "server"
"""Name of the instance where there is only one."""
NO_LIMIT_S = 1e9


@dataclass(frozen=True)
class _Servers:
    """The configurations, by instance; "" where there is one for everything."""

    model: str | None
    """As the configurations name it."""
    configs: Mapping[str, Config]
    notices: tuple[str, ...]


def simulate(args: argparse.Namespace) -> int:
    """Exit code: 0 simulated, 1 the configuration does not boot or survive. Raises UserError for bad input."""
    _check_numbers(args)
    servers = _servers(args)
    model, gpu = _facts(args, servers)
    trace, about = _requests(args)
    is_told = bool(args.config) or any(t.partition("=")[0].strip() == "max_model_len" for t in args.set)
    contract = _contract(args, servers, model, trace, is_told)
    placement = _placement(servers, contract, args, is_told)
    notices = (*servers.notices, *about, contract.text)
    learned = calibration_for(args.simulator_calibration, model, gpu)
    model = model if learned is None else replace(model, memory_seen=learned.memory)
    capacities = {i.name: _capacity(model, gpu, i.config, len(placement.instances)) for i in placement.instances}
    log = _step_log(args, placement)
    notices += (learned.text,) if learned is not None else ()
    residuals = {} if learned is None else learned.residuals
    spec = SimulatorSpec(model, gpu, args.noise, residuals=residuals, step_log=log)
    plan = _plan(args, contract.trace)
    begin = time.perf_counter()
    engine = SimulatedEngine(spec)
    try:
        boot = engine.boot(placement, args.seed)
        phase = engine.replay(plan)
    except EngineFailed as error:
        refused = Refused(model.name, gpu, engine.identity, placement, capacities, error, bool(residuals))
        print(refused_text(refused, args.json))
        return 1
    measurement = Measurement({plan.load: phase}, True, engine.identity, dict(boot.kv_tokens))
    wall_s = time.perf_counter() - begin
    logs = {i.name: str(log_path(log, plan.load, i.name)) for i in placement.instances} if log else {}
    is_learned = bool(residuals)
    done = Simulated(
        model.name, gpu, placement, capacities, boot, measurement, notices, wall_s, args.kv_blocks, logs, is_learned
    )
    print(simulated_text(done, args.json))
    return 0


def _check_numbers(args: argparse.Namespace) -> None:
    if args.kv_blocks is not None and args.kv_blocks < 2:
        raise UserError(f"--kv-blocks {args.kv_blocks}: give at least 2 (vLLM keeps one for itself)")
    if not 0 <= args.noise <= 10:
        raise UserError(f"--noise {args.noise:g}: give a scale from 0 (off) to 10")
    if not 0 <= args.seed <= MAX_SEED:
        raise UserError(f"--seed {args.seed}: give a whole number from 0 to {MAX_SEED}")
    if args.requests is not None and args.requests < 1:
        raise UserError(f"--requests {args.requests}: give at least 1")
    if args.time_limit is not None and not (math.isfinite(args.time_limit) and args.time_limit > 0):
        raise UserError(f"--time-limit {args.time_limit:g}: give seconds, above 0")
    if args.rate is not None and not (math.isfinite(args.rate) and args.rate >= MIN_RATE_PER_S):
        raise UserError(f"--rate {args.rate:g}: give requests per second, at least {MIN_RATE_PER_S:g}")
    if args.rate is not None and args.load == "saturation":
        raise UserError("--rate: in saturation everything waits from the start; leave --rate or --load saturation out")


def _servers(args: argparse.Namespace) -> _Servers:
    """Files first, then what --set changes in all of them or, as INSTANCE.NAME, in one."""
    files = named_files("--config", args.config, "INSTANCE")
    if "" in files and len(files) > 1:
        raise UserError(f"--config {files['']}: name every server's file (INSTANCE=FILE), or give one for everything")
    read = {name: read_current(Path(file)) for name, file in files.items()}
    configs: dict[str, Config] = {name: one.config for name, one in read.items()} or {"": Config({})}
    notices = [f"{one.source}: {text}" for one in read.values() for text in one.notices]
    try:
        overrides = parse_overrides(sets=args.set)
    except ValueError as error:
        raise UserError(str(error)) from None
    for override in overrides:
        instance, _, name = override.name.rpartition(".")
        _set(configs, instance, name, override.values[0])
    models = dict.fromkeys(one.model for one in read.values() if one.model)
    if len(models) > 1 and args.model is None:
        raise UserError(f"--config: the servers name different models ({', '.join(models)}); give --model")
    return _Servers(next(iter(models), None), configs, tuple(notices))


def _set(configs: dict[str, Config], instance: str, name: str, value: Value) -> None:
    if is_secret_name(name):
        raise UserError(f"--set: {name} looks like a secret, and no figure depends on it; leave it out")
    if flag_of(name) is None:
        near = difflib.get_close_matches(name, sorted(MODELLED), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"--set {name}: vLLM 0.32 has no such argument{hint}")
    if instance and instance not in configs:
        known = ", ".join(n for n in configs if n) or "none is named"
        raise UserError(f"--set {instance}.{name}: no such server; --config names {known}")
    for server in [instance] if instance else list(configs):
        configs[server] = configs[server].with_(**{name: value})


def _facts(args: argparse.Namespace, servers: _Servers) -> tuple[ModelFacts, GpuFacts]:
    name = args.model if args.model is not None else servers.model
    if name is None:
        raise UserError("--model: neither it nor a --config names a model; give --model NAME or a directory")
    where = "--model" if args.model is not None else "--config"
    try:
        model = find_model(name)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    try:
        return model, find_gpu(args.gpu)
    except ValueError as error:
        raise UserError(f"--gpu: {error}") from None


def _requests(args: argparse.Namespace) -> tuple[Trace, tuple[str, ...]]:
    """Every tenant's trace from its own beginning, on one clock."""
    files = named_files("--trace", args.trace, "TENANT")
    notices: list[str] = []
    parts: dict[str, Trace] = {}
    for tenant, file in files.items():
        reading = open_trace(find_trace(file), time_unit=args.time_unit)
        part = reading.trace
        if args.requests is not None:
            window = choose_window(part, args.requests, n_warmup=0)
            part = window.trace
            notices.append(f"{file}: {window.text}")
        if reading.n_rejected:
            notices.append(f"{file}: {reading.n_rejected:,} rows were not usable and are left out")
        if not len(part):
            raise UserError(f"--trace {file}: no usable request")
        parts[tenant or "default"] = part.shifted(-float(part.arrival_s[0]))
    return (next(iter(parts.values())) if list(parts) == ["default"] else merge(parts)), tuple(notices)


def _contract(
    args: argparse.Namespace, servers: _Servers, model: ModelFacts, trace: Trace, is_told: bool
) -> ContextContract:
    """What a server is told about lengths holds; else max_model_len follows from the trace, as in a study."""
    if is_told:
        try:
            lengths = [c.int_("max_model_len", model.max_position_tokens) for c in servers.configs.values()]
        except ValueError as error:
            raise UserError(str(error)) from None
        return fit_context(trace, min(lengths), too_long=args.too_long)
    needed = fit_context(trace).max_model_len
    return fit_context(trace, min(needed, model.max_position_tokens), too_long=args.too_long)


def _placement(servers: _Servers, contract: ContextContract, args: argparse.Namespace, is_told: bool) -> Placement:
    more: dict[str, Value] = {} if is_told else {"max_model_len": contract.max_model_len}
    if args.kv_blocks is not None:
        more["num_gpu_blocks_override"] = args.kv_blocks
    configs = {name: config.with_(**more) for name, config in servers.configs.items()}
    tenants = contract.trace.tenants
    if list(configs) == [""]:
        return Placement((Instance(ONE, configs[""], tenants),))
    for kind, names, others in (("--config", configs, tenants), ("--trace", tenants, configs)):
        alone = next((n for n in names if n not in others), None)
        if alone is not None:
            what = "no --trace for its requests" if kind == "--config" else "no --config for its server"
            raise UserError(f"{kind} {alone}: {what}; give both under one name, or one --config without a name")
    sharing: Sharing = args.sharing if len(configs) > 1 else "exclusive"
    return Placement(tuple(Instance(n, c, (n,)) for n, c in configs.items()), sharing)


def _step_log(args: argparse.Namespace, placement: Placement) -> str | None:
    """One server: the file as named; several: its name and theirs."""
    if args.step_log is None:
        return None
    if not args.step_log.strip():
        raise UserError("--step-log: the file's name is empty; name a file, or leave the flag out")
    if len(placement.instances) == 1:
        return str(args.step_log)
    return f"{args.step_log}.{{instance}}"


def _capacity(model: ModelFacts, gpu: GpuFacts, config: Config, n_instances: int) -> Capacity:
    try:
        demand = demand_of(model, gpu, config)
        return solve_capacity(
            model,
            gpu,
            max_num_batched_tokens=demand.max_num_batched_tokens,
            max_num_seqs=demand.max_num_seqs,
            tensor_parallel_size=demand.tensor_parallel_size,
            n_instances=n_instances,
            max_model_len=config.int_("max_model_len", model.max_position_tokens),
            kv_dtype_bytes=kv_dtype_bytes(model, config),
            is_eager=demand.is_eager,
            utilization=config.float_("gpu_memory_utilization", DEFAULT_UTILIZATION),
        )
    except ValueError as error:
        raise UserError(f"--config: {error}") from None


def _plan(args: argparse.Namespace, trace: Trace) -> LoadPlan:
    load: Load = args.load
    offered = rate = args.rate if args.rate is not None else trace.rate_per_s
    if load == "saturation":
        trace, offered = saturation(trace, n_requests=len(trace), seed=args.seed).trace, None
    elif load == "stress":
        if rate is None:
            raise UserError("--load stress: the trace spans no time, so it has no rate; give --rate R")
        trace = stress(trace, rate, n_requests=len(trace), n_warmup=0, seed=args.seed).trace
    elif args.rate is not None:
        laid = steady(trace, args.rate, n_requests=len(trace), n_warmup=0, seed=args.seed)
        trace, offered = laid.trace, laid.offered_per_s
    longest = int(np.max(trace.prompt_tokens.astype(np.int64) + trace.output_tokens))
    return LoadPlan(load, trace, 0, offered, args.time_limit or NO_LIMIT_S, longest)
