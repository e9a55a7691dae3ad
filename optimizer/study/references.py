"""Which configurations everything else is held against: each of them once, however it is written."""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.engines.engine import Instance, Placement
from optimizer.profiles.profile import Profile
from search_spaces.capacity import DEFAULT_UTILIZATION
from search_spaces.config import Config
from search_spaces.constraint import resolve_defaults
from search_spaces.hardware import batch_defaults
from search_spaces.space import SearchSpace, flag_of
from search_spaces.vllm import default_configs


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


AS_SERVED = frozenset({"quantization", "dtype", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"})
"""What makes the model as it is served: with another of these it would be another model or another machine."""


def defaults_of(space: SearchSpace) -> dict[str, Config]:
    """vLLM's own defaults on this GPU, for the model as the user serves it; nothing else of the user's is kept."""
    kept = space.configs(space.fixed)
    return {
        name: Config({**{k: v for k, v in kept[name].items() if k in AS_SERVED}, **config})
        for name, config in default_configs(space).items()
    }


def single_server(profile: Profile, space: SearchSpace, length: int) -> Placement | None:
    """Several instances of one model: one server with every tenant and the whole card, vLLM's scheduler defaults."""
    if not profile.is_shared:
        return None
    tokens, seqs = batch_defaults(space.gpu)
    config = Config(
        {
            "max_num_batched_tokens": tokens,
            "max_num_seqs": seqs,
            "max_model_len": length,
            "gpu_memory_utilization": 0.92,
        }
    )
    return Placement((Instance("all", config, tuple(t.name for t in profile.tenants)),), "exclusive")
