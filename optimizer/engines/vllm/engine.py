"""Real vLLM servers as an Engine: started for a placement, loaded, watched, judged, and ended without a trace.

A set of servers that is up is kept for the next run of the same placement; any other placement, and any failure, ends
it. Nothing is booted on a device whose memory has not come back.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from objectives.measurement import EngineSample, PhaseMeasurement
from optimizer.diagnosis.failure import Circumstances
from optimizer.engines.engine import BootReport, Instance, LoadPlan, Placement, boot_key
from optimizer.engines.vllm.argument_check import check_arguments
from optimizer.engines.vllm.boot import ServerBoot
from optimizer.engines.vllm.devices import Devices, open_devices
from optimizer.engines.vllm.endpoint import Endpoint
from optimizer.engines.vllm.interpreter import VllmInstall, find_vllm
from optimizer.engines.vllm.launch import server_words
from optimizer.engines.vllm.loading import LoadContext
from optimizer.engines.vllm.registry import sweep_leftovers
from optimizer.engines.vllm.server import Server, ServerSpec
from optimizer.engines.vllm.serving import Serving
from optimizer.engines.vllm.spec import VllmSpec
from optimizer.engines.vllm.topology import CoreSet, instance_cores, slot_cores
from optimizer.engines.vllm.turns import free_host_bytes, start_lock, start_need_bytes
from optimizer.errors import EngineFailed
from optimizer.processes import existing

IDLE_BYTES = 1024 * 2**20
"""An idle driver, or a desktop, holds a few hundred MiB; more is somebody's, e.g. an orphan's of an earlier worker."""
RELEASED_WITHIN_S = 30.0
FOLDER_PREFIX = "vco-servers-"
"""Then the worker's process number."""


class VllmEngine:
    """Implements `optimizer.engines.engine.Engine` for one slot: its GPUs (or the CPU), its cores."""

    def __init__(self, spec: VllmSpec, slot: int = 0, n_slots: int = 1, gpu_uuids: tuple[str, ...] = ()) -> None:
        self._spec, self._slot, self._n_slots, self._gpu_uuids = spec, slot, n_slots, gpu_uuids
        self._cores = self._core_set()
        self._install: VllmInstall = find_vllm(spec.python)
        self._devices: Devices = open_devices(gpu_uuids)
        idle = IDLE_BYTES if gpu_uuids else None
        self._baseline = {
            d: used if idle is None or used is None else min(used, idle)
            for d, used in self._devices.used_bytes().items()
        }
        """What a device may hold beside our servers: what is there now, but no more than an idle driver holds."""
        self._servers: dict[str, Server] = {}
        self._placement: Placement | None = None
        self._report: BootReport | None = None
        self._folder: Path | None = None
        self._seed = 0
        self._longest_tokens = 0
        """Of the loads so far; 0 before the first."""
        self._serving: Serving | None = None
        self._logs: dict[str, str] = {}
        self._former_pids: tuple[int, ...] = ()
        """Processes of servers that were stopped, until it is proven that they and their memory are gone."""

    @property
    def identity(self) -> str:
        return self._install.text

    @property
    def is_simulated(self) -> bool:
        return False

    @property
    def servers(self) -> tuple[Server, ...]:
        """Those that are up, in starting order."""
        return tuple(self._servers.values())

    # ---- life -----------------------------------------------------------------------------------------------------

    def holds(self, placement: Placement) -> bool:
        """Whether exactly these servers are up, so that a boot would change nothing."""
        if self._placement is None or boot_key(self._placement, frozenset()) != boot_key(placement, frozenset()):
            return False
        return all(server.is_alive for server in self._servers.values())

    def boot(self, placement: Placement, seed: int) -> BootReport:
        self._seed = seed
        if self.holds(placement) and self._report is not None:
            return replace(self._report, seconds={}, facts={**self._report.facts, "reused": True})
        self.stop()
        self._logs = {}
        check_arguments(self._install, [server_words(i.config, self._spec.model) for i in placement.instances])
        sweep_leftovers()
        self._require_clean_device()
        self._folder = _server_folder()
        with ExitStack() as on_failure:
            on_failure.callback(self.stop)
            boots = self._start_all(placement)
            on_failure.pop_all()
        self._report = self._report_of(placement, boots)
        self._placement, self._serving = placement, self._serve(placement)
        return self._report

    def configure(self, placement: Placement) -> None:
        """vLLM 0.32 has no endpoint for its budgets: only a new boot moves them."""
        if not self.holds(placement):
            raise EngineFailed(
                "arguments", "config", "only a new boot can change these arguments", is_config_fault=False
            )

    def stop(self) -> None:
        """End every server and keep what they printed. That their memory is back is proven before the next boot."""
        self._placement = self._report = self._serving = None
        servers, self._servers = self._servers, {}
        for name, server in servers.items():
            self._former_pids += server.pids
            server.stop()
            self._logs[name] = server.log_text()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def logs(self) -> Mapping[str, str]:
        """Instance -> what its server has printed, as far as it is kept."""
        return {**self._logs, **{name: server.log_text() for name, server in self._servers.items()}}

    def _start_all(self, placement: Placement) -> dict[str, ServerBoot]:
        """One after another: a server that profiles memory must not see its neighbour load."""
        boots = {}
        self._cores = self._core_set(placement)
        sets = instance_cores(self._cores.server, len(placement.instances), self._are_cores_shared(placement))
        for instance, cores in zip(placement.instances, sets, strict=True):
            with start_lock(self._gpu_uuids, self._need_bytes(instance)):
                server = Server(self._server_spec(instance, cores, len(placement.instances)))
                self._servers[instance.name] = server
                server.circumstances = partial(self._circumstances, instance.name)
                try:
                    boots[instance.name] = server.wait_until_ready()
                except EngineFailed as failure:
                    raise _of_instance(failure, instance, placement) from None
        return boots

    def _core_set(self, placement: Placement | None = None) -> CoreSet:
        """This slot's cores. Instances with cores of their own leave the client none where there are too few."""
        place = (self._slot, self._n_slots, self._gpu_uuids, self._spec.gpu_uuids)
        cores = slot_cores(*place)
        if placement is None or self._are_cores_shared(placement) or len(cores.server) >= len(placement.instances):
            return cores
        return slot_cores(*place, n_client_cores=0)

    def _are_cores_shared(self, placement: Placement) -> bool:
        """Only a hard partition of the card is matched by one of the cores; on a CPU it is all there is of it."""
        return placement.sharing != "mig" or len(placement.instances) == 1

    def _need_bytes(self, instance: Instance) -> int:
        kv = instance.config.get("kv_cache_memory_bytes")
        return start_need_bytes(self._spec.model, kv if isinstance(kv, int) and not self._gpu_uuids else 0)

    def _server_spec(self, instance: Instance, cores: tuple[int, ...], n_instances: int) -> ServerSpec:
        assert self._folder is not None
        return ServerSpec(
            name=instance.name,
            model=str(instance.config.get("model", self._spec.model)),
            config=instance.config,
            install=self._install,
            folder=self._folder / instance.name,
            cores=cores,
            gpu_uuids=self._gpu_uuids,
            shares_card=bool(self._gpu_uuids) and n_instances > 1,
            cache_root=Path(self._spec.cache_root) if self._spec.cache_root else None,
        )

    def _circumstances(self, name: str) -> Circumstances:
        """What the device and our other servers tell about a death: whose memory it was that was missing."""
        siblings = tuple(pid for other, s in self._servers.items() if other != name for pid in s.pids)
        own = (*siblings, *self._servers[name].pids)
        seen = self._devices.sample(0.0, own)
        total = [s.used_bytes + s.free_bytes for s in seen if s.used_bytes is not None and s.free_bytes is not None]
        foreign = tuple(pid for s in seen for pid in s.foreign_pids)
        return Circumstances(
            sibling_pids=siblings,
            foreign_pids=foreign,
            foreign_bytes=self._devices.held_bytes(foreign),
            own_former_pids=self._former_pids,
            host_free_bytes=free_host_bytes(),
            device_memory_bytes=min(total) if self._gpu_uuids and total else None,
            workload_max_tokens=self._longest_tokens or None,
        )

    def _require_clean_device(self) -> None:
        """Memory that does not come back belongs to somebody: nothing is booted beside it."""
        release = self._devices.wait_until_released(self._baseline, RELEASED_WITHIN_S, self._former_pids)
        if not release.is_released:
            kind = "neighbour" if release.foreign_pids and not release.own_pids else "quarantine"
            cause = f"the device's memory has not come back within {RELEASED_WITHIN_S:g} s: {release.text}"
            raise EngineFailed(kind, "config", cause, is_config_fault=False)
        self._former_pids = ()

    def _report_of(self, placement: Placement, boots: Mapping[str, ServerBoot]) -> BootReport:
        seconds: dict[str, float] = {}
        for boot in boots.values():
            for phase, s in boot.seconds.items():
                seconds[phase] = seconds.get(phase, 0.0) + s
        return BootReport(
            seconds=seconds,
            kv_tokens={name: boot.kv_tokens for name, boot in boots.items()},
            kv_blocks={name: boot.kv_blocks for name, boot in boots.items()},
            free_memory_bytes=self._devices.free_bytes(),
            facts={
                "vllm": self._install.version,
                "python": self._install.python,
                "devices": list(self._devices.facts()),
                "sharing": self._devices.sharing if self._gpu_uuids else placement.sharing,
                "cores": {
                    "server": list(self._cores.server),
                    "client": list(self._cores.client),
                    "note": self._cores.note,
                },
                "servers": {name: boot.facts() for name, boot in boots.items()},
                "warnings": [f"{name}: {text}" for name, boot in boots.items() for text in boot.warnings],
            },
        )

    # ---- loads ----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        self._require_boot().reset()

    def replay(self, plan: LoadPlan) -> PhaseMeasurement:
        self._longest_tokens = max(self._longest_tokens, plan.max_context_tokens)
        return self._require_boot().replay(plan)

    def sample(self) -> tuple[EngineSample, ...]:
        return self._require_boot().sample()

    def _serve(self, placement: Placement) -> Serving:
        return Serving(
            LoadContext(
                endpoints=tuple(self._endpoint(i, self._servers[i.name]) for i in placement.instances),
                devices=self._devices,
                n_gpus=max(self._spec.n_gpus, 1),
                vocabulary=self._spec.vocabulary,
                seed=self._seed,
                client_cores=self._cores.client,
                judge_hang=self._judge_hang,
                hang_after_s=self._spec.hang_after_s,
                kv_tokens=self._report.kv_tokens if self._report else {},
            )
        )

    def _endpoint(self, instance: Instance, server: Server) -> Endpoint:
        seqs = instance.config.get("max_num_seqs")
        return Endpoint(
            name=instance.name,
            url=server.url,
            model=server.served_model,
            tenants=instance.tenants,
            max_num_seqs=seqs if isinstance(seqs, int) else None,
            pids=lambda: server.pids,
            failure=lambda: None if server.is_alive else server.failure(),
            log_path=server.log_path,
        )

    def _judge_hang(self, text: str) -> EngineFailed:
        states = "; ".join(f"{name}: {server.states()}" for name, server in self._servers.items())
        dumped = [name for name, server in self._servers.items() if server.dump_stacks()]
        told = (f"what its threads were at is at the end of the log of {', '.join(dumped)}",) if dumped else ()
        return EngineFailed("hang", "serving", text, is_config_fault=False, evidence=(states, *told))

    def _require_boot(self) -> Serving:
        if self._serving is None:
            raise EngineFailed("not_booted", None, "boot the engine first", is_config_fault=False)
        return self._serving


def _of_instance(failure: EngineFailed, instance: Instance, placement: Placement) -> EngineFailed:
    """Where several servers start, whose failure it is: bounds under the names that the study's parameters have."""
    if len(placement.instances) == 1:
        return failure
    return EngineFailed(
        failure.kind,
        failure.phase,
        f"{instance.name}: {failure.cause}",
        is_config_fault=failure.is_config_fault,
        violation=failure.violation,
        evidence=failure.evidence,
        bounds={f"{instance.name}.{name}": value for name, value in failure.bounds.items()},
    )


def _server_folder() -> Path:
    """A folder for the servers' logs; those of workers that are no more are removed."""
    for old in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*-*"):
        owner = old.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
        if owner.isdigit() and not existing([int(owner)]):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
