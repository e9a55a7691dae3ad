"""A `SearchSpace` as proposers and the record see it: a grid, a fingerprint of what a point starts, its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from search_spaces.config import Config
from search_spaces.parameter import ChoiceParameter, ShareParameter, Value
from search_spaces.space import Point, SearchSpace

_N_SAMPLES = 200


class GridOfSpace:
    """Every parameter is an axis; one that is not searched has the single level it is held at."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        searched = {p.name for p in space.searched}
        fixed = space.fixed
        self.grid: dict[str, tuple[Value, ...]] = {
            p.name: p.values() if p.name in searched else (fixed[p.name],) for p in space.parameters
        }

    def fingerprint(self, point: Point) -> str:
        """Of the exact arguments of every server, so that points that start the same servers are one."""
        return "-".join(config.fingerprint for config in self._space.configs(point).values())


def argument_samples(space: SearchSpace, seed: int = 0) -> Iterator[dict[str, Value]]:
    """Arguments over every parameter's whole range, searched now or not: for `standing_distributions`."""
    whole = space.activate(p.name for p in space.parameters)
    base = whole.complete({})
    for parameter in space.parameters:
        for value in parameter.values():
            yield arguments(whole.configs({**base, parameter.name: value}))
    for server in space.servers:
        yield from _choices(space, server.name)
    rng = np.random.default_rng(seed)
    for _ in range(_N_SAMPLES):
        yield arguments(whole.configs(whole.sample(rng)))


def _choices(space: SearchSpace, server: str) -> Iterator[dict[str, Value]]:
    """Every choice by name: one that is vLLM's default is left out of the samples, but a baseline may spell it out."""
    owner = f"{server}." if len(space.servers) > 1 else ""
    for flag, parameter in space.own_parameters(server).items():
        if isinstance(parameter, ChoiceParameter) and not isinstance(parameter, ShareParameter):
            yield from ({f"{owner}{flag}": value} for value in parameter.values())


def arguments(configs: Mapping[str, Config]) -> dict[str, Value]:
    """As the study records them: `max_num_seqs` for one server, `chat.max_num_seqs` for several."""
    if len(configs) == 1:
        return dict(next(iter(configs.values())))
    return {f"{server}.{name}": value for server, config in configs.items() for name, value in config.items()}
