"""One vLLM server: started, known to be ready, and ended without a trace."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from optimizer.diagnosis.boot_progress import BootProgress
from optimizer.diagnosis.failure import Circumstances, Verdict, judge
from optimizer.engines.vllm import http
from optimizer.engines.vllm.boot import ServerBoot, read_boot
from optimizer.engines.vllm.environment import ServerEnvironment, server_environment
from optimizer.engines.vllm.guarded import Guarded
from optimizer.engines.vllm.interpreter import VllmInstall
from optimizer.engines.vllm.launch import check_device_names, check_kv_size_given, command, notices, server_words
from optimizer.engines.vllm.log_file import LogFollower, read_log, remove_log
from optimizer.engines.vllm.ports import HOST, PortLease, lease_ports
from optimizer.engines.vllm.readiness import Patience, activity_of
from optimizer.engines.vllm.registry import sweep_leftovers
from optimizer.engines.vllm.turns import weight_files
from optimizer.errors import EngineFailed
from search_spaces.config import Config

LOG_NAME = "server.log"
LOOK_EVERY_S = 0.1
ACTIVITY_EVERY_S = 2.0
STOP_WITHIN_S = 20.0
DUMPED, DUMP_WITHIN_S = "Fatal Python error: Aborted", 3.0
"""How faulthandler begins what it prints of a process that is aborted."""
LAST_WORDS_S = 5.0
"""After the API server's end, until its log is complete."""
GRACE_SHARE = 0.5
"""Of the time a stop may take, how much the server may take to end in order (1.6 s for the CPU build at rest)."""


@dataclass(frozen=True)
class ServerSpec:
    """How one server is started."""

    name: str
    model: str
    """A directory, or a Hugging Face id."""
    config: Config
    install: VllmInstall
    folder: Path
    """Where its output goes, as `server.log`."""
    cores: tuple[int, ...] = ()
    """CPUs it is bound to; empty: all."""
    gpu_uuids: tuple[str, ...] = ()
    """GPUs (or MIG slices) it sees; empty: what the environment says."""
    cache_root: Path | None = None
    """VLLM_CACHE_ROOT, shared by all trials so that compiled graphs are reused; None: vLLM's own."""
    shares_card: bool = False
    """Other servers of ours are on its GPU."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set on top of everything else."""


def environment_for(spec: ServerSpec) -> ServerEnvironment:
    return server_environment(
        spec.install.python,
        is_own_python=spec.install.is_own_python,
        is_cpu=spec.install.is_cpu,
        is_local_model=Path(spec.model).is_dir(),
        gpu_uuids=spec.gpu_uuids,
        cache_root=spec.cache_root,
        extra=spec.environment,
    )


class Server:
    """Starts when it is built, and returns at once. `stop` is due whatever becomes of it.

    Raises UserError for a configuration that names host or port, or no KV size on a CPU; Unavailable when every port
    is taken; EngineFailed for a device that this vLLM cannot name."""

    def __init__(self, spec: ServerSpec, ports: PortLease | None = None) -> None:
        check_kv_size_given(spec.install, spec.config)
        check_device_names(spec.install, spec.gpu_uuids)
        server_words(spec.config, spec.model)
        sweep_leftovers()
        spec.folder.mkdir(parents=True, exist_ok=True)
        self.spec = spec
        self.log_path = spec.folder / LOG_NAME
        remove_log(self.log_path)
        self.served_model = spec.model
        """The name it answers to; known once it is ready."""
        self._environment = environment_for(spec)
        self._was_ready = False
        self.circumstances: Callable[[], Circumstances] = Circumstances
        """What is known beside the log, asked when it died."""
        self._ports = ports or lease_ports()
        self.url = f"http://{HOST}:{self._ports.api}"
        self._words = command(spec.install, spec.config, spec.model, self._ports.api, shares_card=spec.shares_card)
        self._begin_s = time.monotonic()
        self._processes = self._start()

    def _start(self) -> Guarded:
        variables = {**self._environment.variables, "VLLM_PORT": str(self._ports.internal)}
        try:
            return Guarded(self._words, variables, self.log_path, self.spec.cores, self._ports.lock)
        except OSError:
            self._ports.release()
            raise

    # ---- looking at it --------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether its API server runs. Its engine may hang or be dead: see `/health` and the watchdog."""
        return self._processes.is_alive

    @property
    def exit_code(self) -> int | None:
        """The API server's; negative for a signal. It may be 0 after the engine's death."""
        return self._processes.exit_code

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes now (API server, EngineCore, workers, trackers), the API server first; not the guard."""
        found = sorted(p.pid for p in self._processes.processes())
        return tuple(sorted(found, key=lambda pid: pid != self._processes.pid))

    @property
    def guard_pid(self) -> int:
        """The process that ends all of them; see `guard`."""
        return self._processes.guard_pid

    def log_text(self) -> str:
        """Everything it has printed, as far as it is kept (`log_file`)."""
        return read_log(self.log_path)

    def states(self) -> str:
        """Its processes in one line, e.g. `101 vllm sleeping, 102 VLLM::EngineCore stopped`."""
        texts = []
        for pid in self.pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                texts.append(f"{pid} {process.name()} {process.status()}")
        return ", ".join(texts) or "no process is left"

    def dump_stacks(self, within_s: float = DUMP_WITHIN_S) -> bool:
        """Have its processes print into the log what every thread of theirs is at (PYTHONFAULTHANDLER prints it on
        SIGABRT), and end: only for a server that hangs. Whether one did; a stopped process prints nothing."""
        n_before, until_s = self.log_text().count(DUMPED), time.monotonic() + within_s
        for pid in self.pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGABRT)
        while (n := self.log_text().count(DUMPED)) <= n_before and time.monotonic() < until_s:
            time.sleep(LOOK_EVERY_S)
        time.sleep(LOOK_EVERY_S)
        return n > n_before

    # ---- until it is ready ----------------------------------------------------------------------------------------

    def wait_until_ready(self, patience: Patience | None = None) -> ServerBoot:
        """What it resolved and what its start took. Raises EngineFailed, judged from its log; then `stop` is due."""
        seconds: dict[str, float] = {}
        for phase, spent_s in self._phases(patience or self._patience()):
            seconds[phase] = seconds.get(phase, 0.0) + spent_s
        self._was_ready = True
        self._ports.let_go_of_api_port()
        self.served_model = next(iter(http.served_models(self.url)), self.spec.model)
        boot = read_boot(self.url, self.log_text(), self.spec.config, self.spec.install.versions())
        return replace(
            boot,
            seconds=seconds,
            environment=self._environment.recorded(),
            arguments=tuple(self._words),
            gpu_uuids=self.spec.gpu_uuids,
            warnings=(*self._environment.notices, *notices(self.spec.config, self.spec.model), *boot.warnings),
        )

    def _patience(self) -> Patience:
        weight_bytes = sum(path.stat().st_size for path in weight_files(self.spec.model))
        return Patience(self._begin_s, weight_bytes)

    def _phases(self, patience: Patience) -> Iterator[tuple[str, float]]:
        """Phase and seconds, piece by piece, until it answers. Raises EngineFailed if it dies or is hopeless."""
        progress, follower = BootProgress(), LogFollower(self.log_path)
        before_s = last_activity_s = self._begin_s
        while True:
            phase = progress.phase
            has_moved = [progress.feed(line) for line in follower.new_lines()]
            now_s = time.monotonic()
            yield phase, now_s - before_s
            before_s = now_s
            if any(has_moved):
                patience.note_progress(now_s)
            is_look_due = now_s - last_activity_s > ACTIVITY_EVERY_S
            if (progress.phase == "serving" or is_look_due) and self._answers():
                return
            if not self.is_alive:
                raise self.failure()
            if is_look_due:
                last_activity_s = now_s
                patience.note_activity(activity_of(self.pids), now_s)
            if (why := patience.why_hopeless(progress.phase, now_s)) is not None:
                raise EngineFailed("hang", progress.phase, why, is_config_fault=False, evidence=[self.states()])
            time.sleep(LOOK_EVERY_S)

    def _answers(self) -> bool:
        """Whether it does, and not a stranger that took its port between its `bind` and its `listen`."""
        return self._listens() and http.health(self.url)

    def _listens(self) -> bool:
        for pid in self.pids:
            with contextlib.suppress(psutil.Error):
                for connection in psutil.Process(pid).net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN and connection.laddr.port == self._ports.api:
                        return True
        return False

    # ---- its end --------------------------------------------------------------------------------------------------

    def failure(self) -> EngineFailed:
        """Why it died, from its whole log; call it when `is_alive` has become False."""
        self._processes.wait(LAST_WORDS_S)
        known = replace(self.circumstances(), was_ready=self._was_ready)
        known = replace(known, exit_code=self.exit_code, arguments=known.arguments or dict(self.spec.config))
        verdict = judge(self.log_text(), known)
        if verdict is not None and verdict.kind != "unknown":
            return as_error(verdict)
        if self._processes.failure:
            return EngineFailed("killed", None, self._processes.failure, is_config_fault=False)
        if verdict is not None:
            return as_error(verdict)
        why = f"it ended with exit status {self.exit_code} and its log does not say why"
        return EngineFailed("unknown", None, why, is_config_fault=False)

    def stop(self, within_s: float = STOP_WITHIN_S) -> None:
        """In order, then by force; returns when no process of it is left. A second call does nothing."""
        self._processes.stop(within_s, GRACE_SHARE * within_s)
        self._ports.release()


def as_error(verdict: Verdict) -> EngineFailed:
    return EngineFailed(
        verdict.kind,
        verdict.phase,
        verdict.cause,
        is_config_fault=verdict.config_fault,
        violation=verdict.violation,
        evidence=verdict.evidence,
        bounds=verdict.bounds,
    )
