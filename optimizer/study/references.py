"""Which configurations everything else is held against: each of them once, however it is written."""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.engines.engine import Instance, Placement
from optimizer.errors import UserError
from optimizer.profiles.profile import Profile
from search_spaces.capacity import DEFAULT_UTILIZATION, Capacity
from search_spaces.config import Config
from search_spaces.constraint import resolve_defaults
from search_spaces.hardware import GIB, batch_defaults
from search_spaces.parameter import Value
from search_spaces.space import KV_SPLIT, SearchSpace, flag_of
from search_spaces.vllm import default_configs, equal_kv_bytes


def distinct(placements: Sequence[tuple[str, Placement]], space: SearchSpace) -> list[tuple[str, Placement]]:
    """The first of each distinct configuration: a current configuration that is the default is one baseline."""
    seen: dict[str, tuple[str, Placement]] = {}
    for name, placement in placements:
        seen.setdefault(_resolved(placement, space), (name, placement))
    return list(seen.values())


def _resolved(placement: Placement, space: SearchSpace) -> str:
    """What would run, whether it was given or is vLLM's own default."""
    plain = {flag_of(p.name): p.default for p in space.parameters}
    servers = []
    for instance in placement.instances:
        values = resolve_defaults(instance.config, space.model, None, space.gpu)
        if "kv_cache_memory_bytes" not in values:
            values.setdefault("gpu_memory_utilization", DEFAULT_UTILIZATION)
        servers.append(sorted((k, repr(v)) for k, v in values.items() if k not in plain or plain[k] != v))
    return repr(servers)


LOADED_AS = frozenset({"load_format"})
CPU_BUILD = frozenset({"enforce_eager", "block_size"})
"""On a CPU these say how the build is run (compiling takes longer than a trial there), not how it is tuned."""
AS_SERVED = LOADED_AS | {
    "quantization", "dtype", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
}  # fmt: skip
"""What makes the model as it is served: with another of these it would be another model or another machine."""


def defaults_of(space: SearchSpace) -> dict[str, Config]:
    """vLLM's own defaults on this GPU, for the model as the user serves it; nothing else of the user's is kept."""
    kept = space.configs(space.fixed)
    served = AS_SERVED | CPU_BUILD if space.gpu.is_cpu else AS_SERVED
    return {
        name: Config({**{k: v for k, v in kept[name].items() if k in served}, **config})
        for name, config in default_configs(space).items()
    }


def single_server(profile: Profile, space: SearchSpace, length: int) -> Placement | None:
    """Several instances of one model: one server with every tenant and the whole card, vLLM's scheduler defaults."""
    if not profile.is_shared:
        return None
    tokens, seqs = batch_defaults(space.gpu)
    first = next(iter(space.configs(space.fixed).values()))
    served = LOADED_AS | CPU_BUILD if space.gpu.is_cpu else LOADED_AS
    values: dict[str, Value] = {k: v for k, v in first.items() if k in served}
    values |= {"max_num_batched_tokens": tokens, "max_num_seqs": seqs, "max_model_len": length}
    if space.gpu.is_cpu:
        values["kv_cache_memory_bytes"] = equal_kv_bytes(space, [values])
    else:
        values["gpu_memory_utilization"] = DEFAULT_UTILIZATION
    config = Config(values)
    return Placement((Instance("all", config, tuple(t.name for t in profile.tenants)),), "exclusive")


def smallest_point(space: SearchSpace) -> dict[str, Value]:
    """The last resort of a reference: every budget at the low end of what is searched."""
    return {p.name: p.values()[0] for p in space.searched if flag_of(p.name) != KV_SPLIT}


def check_fixed_memory(space: SearchSpace, capacity: Capacity) -> None:
    """A fixed number of KV bytes that no server of this study can start with is refused now, not trial by trial."""
    for parameter in space.parameters:
        values = parameter.values()
        if flag_of(parameter.name) != "kv_cache_memory_bytes" or len(values) > 1 or not isinstance(values[0], int):
            continue
        longest = max(s.max_model_len for s in space.servers)
        least, most = capacity.model.kv_bytes(longest, space.base_tensor_parallel_size), capacity.optimistic_bytes
        if not least <= values[0] <= most:
            raise UserError(
                f"kv_cache_memory_bytes {values[0]}: one request of {longest} tokens needs {least / GIB:.2f} GiB and"
                f" {most / GIB:.2f} GiB can be there at most"
            )
