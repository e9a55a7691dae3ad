"""Reading a log once, line by line, for what failed in it: findings, signs of life, and how the server ended.

A log may hold several boots (a container that restarts): only the last one is judged. Servers that write to one log
under their own names are told apart in `servers`; without names, by their pids as far as those tell."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from optimizer.diagnosis import machine_signs, memory_signs, refusal_signs
from optimizer.diagnosis.boot_progress import READY, BootProgress
from optimizer.diagnosis.log_line import LogLine
from optimizer.diagnosis.server_lines import is_of_server
from optimizer.diagnosis.sign import Rank, Sign
from optimizer.diagnosis.stall import Stall
from optimizer.diagnosis.vllm_log import tells_card

SIGNS: tuple[Sign, ...] = (*memory_signs.SIGNS, *machine_signs.SIGNS, *refusal_signs.SIGNS)

REFUSALS = frozenset({"arguments", "model_missing", "version", "unknown", "port"})
"""Kinds that a serving engine survives: after it was ready they count only if it died."""


def _any_of(signs: Iterable[Sign]) -> re.Pattern[str]:
    """One pattern for all of them, without names (which may not repeat): the quick test."""
    return re.compile("|".join(re.sub(r"\?P<\w+>", "?:", s.pattern.pattern) for s in signs))


_ANY, _ANY_BARE = _any_of(SIGNS), _any_of(s for s in SIGNS if s.is_bare)
_QUIET = tuple(s for s in SIGNS if s.is_quiet)
_ANY_QUIET = _any_of(_QUIET)

_BANNERS = ("non-default args: ", "vLLM API server version", "args: Namespace(")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
_FRAME = re.compile(r"^[\s|]*File \".*\", line \d+,? in (\S+)|traceback:.* in (\w+)$")
_EXCEPTION = re.compile(
    r"^[\s|+]*(?:[\w.]+\.)?\w*(?:Error|Exception|Timeout|Exit|Interrupt)(?:\(\w+\))?(?:: .*|:?$)|^\s*Value error, "
)
_DEATH = re.compile(
    r"EngineCore (?:failed to start|encountered|hit an exception)|Engine core initialization failed|Engine core proc"
    r"|Engine process \(pid|Engine process failed to start|WorkerProc (?:failed|hit|initialization failed)"
    r"|Executor failed|EngineDead"
    r"|Worker failed with error|AsyncLLM output_handler failed|engine core exited unexpectedly|Got fatal signal"
    r"|died unexpectedly|Frontend process failed|Background loop|MQLLMEngine|Failed core proc"
)
_BOOT_DEATH = re.compile(r"failed to start|[Ii]nitialization failed|during engine core initialization")
_SERVING_DEATH = re.compile(r"encountered a fatal error|output_handler failed|EngineDead|Background loop")
_NOISE = re.compile(
    r"RuntimeError: cancelled|RayTaskError|CancelledError|SystemExit|KeyboardInterrupt|BrokenPipeError|EOFError"
    r"|ConnectionResetError|zmq\.error"
)
"""What the processes around a dead one raise: no cause of anything."""
_TOLD = re.compile(
    r"\[shutdown\] API server: shutdown triggered|[Rr]eceived (?:signal )?SIG(?:TERM|INT)|Gracefully stopping"
    r"|^Shutting down$|^\s*KeyboardInterrupt"
)
"""The API server's own words; the engine's `trigger received signal` alone means that somebody ended the engine."""
_ENGINE_TOLD = re.compile(r"EngineCore: trigger received signal=(\w+)")
_ENDINGS = ("hut", "SIG", "signal", "topping", "Interrupt")
"""One of them is in every text of `_TOLD` and `_ENGINE_TOLD`."""
_FACTS = ("took", "KV cache", "args: ", "LLM engine", "blocks")
"""Lines that `facts_of` reads hold one of these."""
MAX_KEPT = 500
_SOURCE = "   "
"""Lines of a traceback that quote source code are indented by four."""
_DESCRIBED = re.compile(r"\s+(?:Reason|Exit Code|Message):\s")
"""Indented, too: how `kubectl describe pod` tells of a container's end."""
ORDER = {"config": 0, "load": 1, "warmup": 2, "kv_alloc": 3, "graph_capture": 4, "serving": 5}
"""Of a boot that measures its KV size."""
_ALIVE = re.compile(r"\"POST /\S+ HTTP/[\d.]+\" 200|Avg generation throughput: (?!0\.0 )\d")


@dataclass(frozen=True)
class Aside:
    """What was found before another server's boot, or its being ready, seemed to settle it."""

    findings: list[Finding]
    deaths: list[LogLine]
    pids: frozenset[int]


@dataclass
class Finding:
    """A line that may be the cause, with what surrounds it. `sign` None: an exception that no sign explains."""

    line: LogLine
    sign: Sign | None
    groups: dict[str, str]
    frames: tuple[str, ...]
    """Functions of the traceback that the line ends, outermost first; empty where there is none."""
    time_s: float | None
    """The line's time, or that of the line before it that has one."""
    phase: str | None
    """The boot's phase then; None before any line told one."""
    is_ready: bool
    n_alive_after: int = 0
    """Signs of life between it and the death."""
    details: list[LogLine] = field(default_factory=list)
    """Lines that carry on its text, as pydantic's errors do."""

    @property
    def rank(self) -> Rank:
        return self.sign.rank if self.sign else "report"

    @property
    def kind(self) -> str:
        return self.sign.kind if self.sign else "unknown"


def _is_source(message: str) -> bool:
    return message.startswith(_SOURCE) and _DESCRIBED.match(message) is None


def _survived_at(phase: str | None) -> int:
    """From here on a refusal in `phase` stopped nothing: one phase further for the API server, two for a worker, whose
    siblings may be that far ahead."""
    return 1 if phase in (None, "config") else ORDER[phase] + 2


class Scan:
    """Feed every line, then read the fields."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self.is_of_server = False
        """Whether any line is one that a server, or Python, prints."""
        self._aside: Aside | None = None
        self._begin()

    def _begin(self) -> None:
        self.findings: list[Finding] = []
        self.progress = BootProgress()
        self.stall = Stall()
        self.deaths: list[LogLine] = []
        self.first_error: LogLine | None = None
        self.told_to_stop: LogLine | None = None
        self.engine_signal = ""
        """The signal that the engine process itself says it got."""
        self.kept: list[LogLine] = []
        """Lines that state facts: sizes, arguments, times."""
        self.dumps: list[LogLine] = []
        """The requests of the step that failed, as vLLM dumps them."""
        self.late_frames: list[str] = []
        """Functions named after the first finding, for logs that print the traceback last."""
        self._frames: dict[str, list[str]] = {}
        self._open: Finding | None = None
        self._last_s: float | None = None

    @property
    def first_trouble(self) -> int:
        """The number of the first line that may tell of a failure; a log's end where none does."""
        lines = [f.line for f in self.findings] + self.deaths
        return min((line.number for line in lines), default=sys.maxsize)

    @property
    def has_died(self) -> bool:
        return bool(self.deaths)

    @property
    def died_booting(self) -> bool:
        return any(_BOOT_DEATH.search(line.message) for line in self.deaths)

    @property
    def died_serving(self) -> bool:
        return any(_SERVING_DEATH.search(line.message) for line in self.deaths)

    def feed(self, line: LogLine) -> None:
        message = line.message
        if line.level in ("INFO", "") and (any(b in message for b in _BANNERS) or message.startswith("usage: ")):
            self._set_aside(line, is_restart=line.pid is None or line.pid in self.pids)
            self._begin()
        if line.pid is not None:
            self.pids.add(line.pid)
        self.is_of_server = self.is_of_server or is_of_server(line)
        if self.told_to_stop is None:
            self.stall.feed(line)
        self._last_s = line.time_s if line.time_s is not None else self._last_s
        if self.progress.feed(line):
            self.stall.move()
            self._note_progress(line)
        if "GiB" in message and tells_card(message) and len(self.kept) < MAX_KEPT:
            self.kept.append(line)
        if line.level in ("INFO", ""):
            self._note_life(line)
        if self._is_frame(line) or self.told_to_stop is not None or _is_source(message):
            return
        if line.level in ("INFO", "WARNING", "DEBUG"):
            self._feed_quiet(line)
        else:
            self._feed_grave(line)

    def _note_life(self, line: LogLine) -> None:
        """A server that goes on was not killed by what came before."""
        message = line.message
        if not self.progress.is_ready and not tells_card(message) and any(word in message for word in _FACTS):
            self.kept.append(line)
        if self.findings and not self.deaths and _ALIVE.search(message):
            for finding in self.findings:
                finding.n_alive_after += 1

    def _note_progress(self, line: LogLine) -> None:
        """What refuses to start refuses in its phase: a boot that is well past it has survived."""
        if READY.search(line.message):
            self._note_ready(line)
        elif self.findings:
            now = ORDER[self.progress.phase]
            self.findings = [f for f in self.findings if f.kind not in REFUSALS or now < _survived_at(f.phase)]

    def _note_ready(self, line: LogLine) -> None:
        """It was killed by nothing that came before; an API server of another pid that ended is another server's."""
        if line.pid is not None and any(d.process == line.process and d.pid != line.pid for d in self.deaths):
            return
        self._set_aside(line, is_restart=False)
        self.findings, self.deaths = [], []

    def _set_aside(self, line: LogLine, *, is_restart: bool) -> None:
        """A boot that takes an earlier one's pid is its restart, as in a container: the earlier one is over."""
        pids = frozenset(self.pids - {line.pid})
        if self.findings:
            self._aside = Aside(self.findings, self.deaths, pids) if pids and not is_restart else None

    def _is_frame(self, line: LogLine) -> bool:
        """Collects the functions of the traceback at hand, one traceback a process at a time."""
        if "raceback" not in line.message and "File " not in line.message:
            return False
        if _TRACEBACK.search(line.message):
            self._frames[line.process] = []
            self._open = None
        if match := _FRAME.search(line.message):
            self._frames.setdefault(line.process, []).append(match[1] or match[2])
            if self.findings:
                self.late_frames.append(match[1] or match[2])
            return True
        return False

    def _feed_quiet(self, line: LogLine) -> None:
        self._open = None
        if line.level == "INFO" and not any(word in line.message for word in _ENDINGS):
            return
        if told := _ENGINE_TOLD.search(line.message):
            self.engine_signal = told[1]
        if not self.findings and not self.deaths and _TOLD.search(line.message):
            self.told_to_stop = line
        elif line.level == "WARNING" and _ANY_QUIET.search(line.message):
            self._find(line, _QUIET)

    def _feed_grave(self, line: LogLine) -> None:
        message = line.message
        if "Dumping scheduler output" in message or "Dumping input data" in message:
            self.dumps.append(line)
            return
        is_grave = bool(line.level) or _EXCEPTION.match(message) is not None
        if (_ANY if is_grave else _ANY_BARE).search(message):
            self._find(line, SIGNS if is_grave else tuple(s for s in SIGNS if s.is_bare))
        elif _DEATH.search(message):
            self._note_death(line)
        elif is_grave and _EXCEPTION.match(message) and not _NOISE.search(message):
            self._add(line, None, {})
        elif line.level and self.first_error is None and message[:1].strip() and not _TRACEBACK.search(message):
            self.first_error = line
        elif self._open is not None and not line.level and len(self._open.details) < 8:
            self._open.details.append(line)

    def _find(self, line: LogLine, signs: tuple[Sign, ...]) -> None:
        for sign in signs:
            if match := sign.pattern.search(line.message):
                groups = {k: v for k, v in match.groupdict().items() if v is not None}
                self._add(line, sign, groups)
                break
        if _DEATH.search(line.message):
            self._note_death(line)

    def _add(self, line: LogLine, sign: Sign | None, groups: dict[str, str]) -> None:
        frames = tuple(self._frames.pop(line.process, ()))
        phase = self.progress.phase if self.progress.n_steps else None
        self._open = Finding(line, sign, groups, frames, self._last_s, phase, self.progress.is_ready)
        self.findings.append(self._open)

    def _note_death(self, line: LogLine) -> None:
        if line.level in ("INFO", "DEBUG"):
            return
        aside = self._aside
        if aside is not None and not self.findings and line.pid in aside.pids and _BOOT_DEATH.search(line.message):
            self.findings, self.deaths, self._aside = aside.findings, aside.deaths, None
        self.deaths.append(line)


def scan_log(lines: Iterable[LogLine]) -> Scan:
    scan = Scan()
    for line in lines:
        scan.feed(line)
    return scan
