"""Servers that somebody else runs, as an Engine: measured only, never started, stopped or changed.

Whatever is asked of it in arguments is not looked at: it measures what is there. Prefix caches are not emptied through
development endpoints of a server that is not ours; prompts get a salt of their own instead.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from objectives.measurement import EngineSample, PhaseMeasurement
from optimizer.engines.engine import BootReport, Instance, LoadPlan, Placement
from optimizer.engines.vllm.devices import NoDevices
from optimizer.engines.vllm.endpoint import Endpoint
from optimizer.engines.vllm.http import cache_config, health, served_models
from optimizer.engines.vllm.http import version as version_of
from optimizer.engines.vllm.loading import LoadContext
from optimizer.engines.vllm.metrics import Scrape, scrape
from optimizer.engines.vllm.serving import Serving
from optimizer.engines.vllm.spec import AttachSpec
from optimizer.engines.vllm.told import told_arguments
from optimizer.engines.vllm.topology import core_sets
from optimizer.errors import EngineFailed, Unavailable, UserError
from search_spaces.config import Config

WATCHED_S = 2.0
"""How long a server is watched for requests of others before it is loaded."""


class AttachedEngine:
    """Implements `optimizer.engines.engine.Engine` over running servers."""

    def __init__(self, spec: AttachSpec) -> None:
        self._spec = spec
        self._urls = dict(spec.urls)
        self._versions = {name: self._version(name, url) for name, url in spec.urls}
        self._serving: Serving | None = None

    @property
    def identity(self) -> str:
        return f"vLLM {self.version} (attached)"

    @property
    def is_simulated(self) -> bool:
        return False

    @property
    def version(self) -> str:
        return ", ".join(dict.fromkeys(self._versions.values()))

    def known_config(self, instance: str) -> Config:
        """The arguments that the server tells of itself: all of them with development endpoints, else its KV cache."""
        return Config(told_arguments(self._url(instance), self._spec.api_key_variable))

    def holds(self, placement: Placement) -> bool:
        return self._serving is not None

    def boot(self, placement: Placement, seed: int) -> BootReport:
        """Nothing is started. Raises EngineFailed when a server is gone, UserError when others' requests run there."""
        endpoints = tuple(self._endpoint(i) for i in placement.instances)
        if not self._spec.is_insisting:
            for endpoint in endpoints:
                _require_idle(endpoint)
        self._serving = Serving(
            LoadContext(
                endpoints=endpoints,
                devices=NoDevices(),
                n_gpus=self._spec.n_gpus,
                vocabulary=self._spec.vocabulary,
                seed=seed,
                client_cores=core_sets(1, n_client_cores=None)[0].client,
                judge_hang=lambda text: EngineFailed("hang", "serving", text, is_config_fault=False),
            ),
            is_ours=False,
        )
        facts = {e.name: cache_config(e.url, e.api_key_variable) for e in endpoints}
        return BootReport(
            seconds={},
            kv_tokens={name: int(f["kv_tokens"]) for name, f in facts.items() if f.get("kv_tokens")},
            kv_blocks={name: int(f["num_gpu_blocks"]) for name, f in facts.items() if f.get("num_gpu_blocks")},
            free_memory_bytes=None,
            facts={"attached": dict(self._spec.urls), "vllm": dict(self._versions), "servers": facts},
        )

    def configure(self, placement: Placement) -> None:
        raise EngineFailed("arguments", "config", "an attached server is not ours to change", is_config_fault=False)

    def reset(self) -> None:
        self._require_boot().reset()

    def replay(self, plan: LoadPlan) -> PhaseMeasurement:
        return self._require_boot().replay(plan)

    def sample(self) -> tuple[EngineSample, ...]:
        return self._require_boot().sample()

    def stop(self) -> None:
        """Let go of the servers; they run on."""
        self._serving = None

    def logs(self) -> Mapping[str, str]:
        return {}

    def _version(self, name: str, url: str) -> str:
        found = version_of(url, self._spec.api_key_variable)
        if found is None:
            raise Unavailable(f"--attach {name}={url}: no vLLM server answers there; start it, or check the address")
        return found

    def _url(self, instance: str) -> str:
        return self._urls.get(instance) or self._urls[""]

    def _endpoint(self, instance: Instance) -> Endpoint:
        url = self._url(instance.name)
        key = self._spec.api_key_variable
        if not health(url, key):
            raise EngineFailed("killed", None, f"the server at {url} does not answer", is_config_fault=False)
        models = served_models(url, key)
        if not models:
            raise UserError(f"--attach {url}: it serves no model")
        return Endpoint(
            instance.name, url, models[0], instance.tenants, api_key_variable=key, failure=lambda: _death(url, key)
        )

    def _require_boot(self) -> Serving:
        if self._serving is None:
            raise EngineFailed("not_booted", None, "boot the engine first", is_config_fault=False)
        return self._serving


def _death(url: str, api_key_variable: str) -> EngineFailed | None:
    if health(url, api_key_variable):
        return None
    return EngineFailed("killed", "serving", f"the server at {url} stopped answering", is_config_fault=False)


def _require_idle(endpoint: Endpoint) -> None:
    """Two readings: nothing runs or waits at either, and nothing finished between them."""
    first = _read(endpoint)
    time.sleep(WATCHED_S)
    last = _read(endpoint)
    n_open = max((s.n_running or 0) + (s.n_waiting or 0) for s in (first, last))
    n_done = (last.n_finished_total or 0) - (first.n_finished_total or 0)
    if n_open or n_done:
        raise UserError(
            f"--attach {endpoint.url}: {n_open:.0f} request(s) of others run there and {n_done:.0f} finished within"
            f" {WATCHED_S:g} s: measuring would disturb them and be disturbed; try when it is idle, or insist with"
            " --attach-anyway"
        )


def _read(endpoint: Endpoint) -> Scrape:
    seen = scrape(endpoint.url, api_key_variable=endpoint.api_key_variable)
    if seen is None:
        raise UserError(
            f"--attach {endpoint.url}: /metrics cannot be read, so nobody knows whether others use it; start the"
            " server without --disable-log-stats, or insist with --attach-anyway"
        )
    return seen
