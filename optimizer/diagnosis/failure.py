"""What a server's log says went wrong: kind, phase, cause, whose fault, what would have fitted, what to change.

The cause is the earliest error of the last boot in the log that is no echo of another, over all processes; exit codes
and the wrappers that end every failed start are never the reason. A log in which nothing failed gives None."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from optimizer.deployment.secrets import mask
from optimizer.diagnosis.advice import advise
from optimizer.diagnosis.blame import LOW_RAM_BYTES, Blame, blame, one_line
from optimizer.diagnosis.bounds import bounds_of
from optimizer.diagnosis.cause import phase_of, root_of
from optimizer.diagnosis.circumstances import Circumstances
from optimizer.diagnosis.log_line import LogLine, parse_line, read_lines
from optimizer.diagnosis.scan import Finding, Scan, scan_log
from optimizer.diagnosis.servers import Servers, scan_servers
from optimizer.diagnosis.severity import violation_of
from optimizer.diagnosis.trigger import TRIGGERS, describe_in_flight, trigger_of
from optimizer.diagnosis.vllm_log import facts_of

__all__ = ["Circumstances", "Verdict", "judge", "judge_servers"]

MAX_EVIDENCE = 8


@dataclass(frozen=True)
class Verdict:
    kind: str
    """weights, kv_capacity, runtime_peak, arguments, neighbour, orphan, profiling_race, port, host_ram, killed, hang,
    model_missing, version, client, unknown. `client` is the load generator's own: no log shows it."""
    phase: str | None
    """config, load, kv_alloc, warmup, graph_capture, serving; None where nothing tells."""
    cause: str
    """One line."""
    config_fault: bool
    """The configuration decides it: another boot of it fails too, on an undisturbed machine as well."""
    evidence: tuple[str, ...] = ()
    """Lines of the log, in order, secrets masked."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """See `diagnosis.bounds`. They hold for this configuration's other values only."""
    advice: tuple[str, ...] = ()
    """Changes to try, in order."""
    violation: float = 1.0
    """> 0; about the share by which it did not fit, where the text gives it."""
    trigger: str = ""
    """`request_params` if a request's own parameters (prompt_logprobs, n) caused the peak; `cause` says so too."""

    def to_json(self) -> dict[str, Any]:
        bounds = {k: int(v) if float(v).is_integer() else v for k, v in self.bounds.items()}
        return {
            "kind": self.kind,
            "phase": self.phase,
            "cause": self.cause,
            "config_fault": self.config_fault,
            "evidence": list(self.evidence),
            "bounds": bounds,
            "advice": list(self.advice),
            "trigger": self.trigger,
        }


def judge(log: str | Iterable[str], circumstances: Circumstances | None = None) -> Verdict | None:
    """The verdict on a log (a text, or its pieces such as an open file's lines); None if nothing failed in it."""
    lines = read_lines([log] if isinstance(log, str) else log)
    return judge_servers(scan_servers(lines), circumstances or Circumstances())


def judge_servers(servers: Servers, given: Circumstances) -> Verdict | None:
    """Of several servers in one log, the first that failed, by name; the others that failed are named too."""
    scans = servers.scans
    failed = {name: verdict for name, scan in scans.items() if (verdict := _judge(scan, given))}
    if not failed:
        return None
    name = min(failed, key=lambda n: (not scans[n].is_of_server, failed[n].kind == "unknown", scans[n].first_trouble))
    if len(scans) == 1:
        return failed[name]
    others = "".join(f"; {n or 'another'} failed too: {v.kind}" for n, v in failed.items() if n != name)
    return replace(failed[name], cause=mask(f"{name + ': ' if name else ''}{failed[name].cause}{others}"))


def _judge(scan: Scan, given: Circumstances) -> Verdict | None:
    given = replace(given, sibling_pids=(*given.sibling_pids, *scan.pids))
    root = root_of(scan)
    if given.killed_by_us and root is not None and root.kind in ("killed", "unknown"):
        root = None
    if host := _host_finding(scan, root, given):
        phase = phase_of(root, scan, given.was_ready) if root else _last(scan, given)
        return _verdict(host, scan, given, phase, [*([root.line.text] if root else []), host.line.text])
    if root is not None:
        return _verdict(root, scan, given, phase_of(root, scan, given.was_ready), _evidence(root, scan))
    return _without_finding(scan, given)


def _host_finding(scan: Scan, root: Finding | None, given: Circumstances) -> Finding | None:
    """What the kernel or Ray say about the host's memory, if the server died without a better reason."""
    was_killed = (root is not None and root.kind in ("killed", "hang")) or (root is None and given.signal in (7, 9))
    if not was_killed or not given.extra_logs:
        return None
    beside = scan_log(read_lines([given.extra_logs]))
    for finding in beside.findings:
        victim = finding.groups.get("victim")
        if finding.kind == "host_ram" and (victim is None or not scan.pids or int(victim) in scan.pids):
            return finding
    return None


def _verdict(root: Finding, scan: Scan, given: Circumstances, phase: str | None, evidence: list[str]) -> Verdict:
    facts = facts_of(scan.kept)
    bounds = bounds_of(root, _same_failure(root, scan), facts, given)
    judged = _refined(blame(root, phase, bounds, facts, given), scan, given)
    trigger = trigger_of(root, scan)
    cause = judged.cause + (f"; {TRIGGERS[trigger]}" if trigger else "")
    evidence = [*evidence, *describe_in_flight(given.in_flight, judged.kind)]
    return Verdict(
        judged.kind,
        phase,
        mask(_with_process(cause, root.line)),
        judged.is_config_fault,
        tuple(mask(one_line(text, 500)) for text in evidence),
        bounds,
        advise(judged.kind, phase, bounds, facts, given, root, trigger),
        violation_of(judged.kind, bounds, root),
        trigger,
    )


def _refined(judged: Blame, scan: Scan, given: Circumstances) -> Blame:
    """A death without a word, with what else is known about it."""
    if judged.kind == "killed" and scan.engine_signal:
        judged = Blame(
            "killed", False, f"the engine was ended by {scan.engine_signal}, which its API server did not send"
        )
    return _host_blame(judged, given)


def _host_blame(judged: Blame, given: Circumstances) -> Blame:
    if judged.kind == "killed" and given.host_free_bytes is not None and given.host_free_bytes < LOW_RAM_BYTES:
        return Blame("host_ram", False, f"{judged.cause}, with {given.host_free_bytes / 2**20:.0f} MiB of RAM free")
    return judged


def _with_process(cause: str, line: LogLine) -> str:
    ranked = line.process.startswith(("Worker", "EngineCore", "Ray", "rank"))
    return f"{cause} ({line.process})" if ranked else cause


def _same_failure(root: Finding, scan: Scan) -> list[Finding]:
    return [f for f in scan.findings if f.kind in (root.kind, "runtime_peak", "weights")]


def _evidence(root: Finding, scan: Scan) -> list[str]:
    """The cause's line with what carries it on, the facts that belong to it, and the first word of the death."""
    lines = {root.line.number: root.line.text}
    for finding in _same_failure(root, scan)[:3]:
        lines.setdefault(finding.line.number, finding.line.text)
    lines.update({d.number: d.text for d in root.details[:4] if d.text.strip()})
    if root.kind == "kv_capacity":
        lines.update({k.number: k.text for k in scan.kept if "KV cache memory" in k.message})
    lines.update({d.number: d.text for d in scan.deaths[:1]})
    kept: dict[str, str] = {}
    for n in sorted(lines):
        kept.setdefault(parse_line(n, lines[n]).message, lines[n])
    return list(kept.values())[:MAX_EVIDENCE]


def _without_finding(scan: Scan, given: Circumstances) -> Verdict | None:
    """Nothing in the log explains it: what is known beside it does, or nothing failed."""
    facts = facts_of(scan.kept)
    phase = _last(scan, given)
    judged, evidence = _silent(scan, given)
    if judged is None:
        return None
    advice = advise(judged.kind, phase, {}, facts, given, None, "")
    shown = tuple(mask(one_line(text, 500)) for text in evidence)
    return Verdict(judged.kind, phase, mask(judged.cause), judged.is_config_fault, shown, {}, advice)


def _last(scan: Scan, given: Circumstances) -> str | None:
    """The phase in which the log ends."""
    if given.was_ready or scan.progress.is_ready or scan.stall.last_still is not None:
        return "serving"
    return scan.progress.phase if scan.progress.n_steps else None


def _silent(scan: Scan, given: Circumstances) -> tuple[Blame | None, list[str]]:
    if given.hang_s is not None:
        return Blame("hang", False, f"no token for {given.hang_s:.0f} s while requests were running"), []
    if scan.has_died and not given.killed_by_us:
        return _died(scan), [line.text for line in ([scan.first_error] if scan.first_error else []) + scan.deaths[:2]]
    if stalled := scan.stall.describe(scan.progress.is_ready or scan.progress.n_steps == 0):
        return Blame("hang", False, stalled[0]), [stalled[1].text]
    if given.killed_by_us or given.exit_code is None:
        return None, []
    return _ended(scan, given), [scan.told_to_stop.text] if scan.told_to_stop else []


def _died(scan: Scan) -> Blame:
    if scan.first_error is not None:
        return Blame("unknown", False, f"the engine died: {one_line(scan.first_error.message)}")
    if scan.progress.n_steps:
        return Blame("killed", False, "a process of the engine ended without a word, as after SIGKILL")
    return Blame("unknown", False, "the engine died; the part of the log that says why is missing")


def _ended(scan: Scan, given: Circumstances) -> Blame | None:
    """The process is gone and its log does not say why."""
    if scan.told_to_stop is not None or given.signal in (2, 15):
        return _host_blame(Blame("killed", False, "the server was told to end by a signal that was not ours"), given)
    if given.signal == 7:
        return Blame("host_ram", False, "the server died of SIGBUS: /dev/shm is too small or full")
    if given.signal is not None:
        return _host_blame(Blame("killed", False, f"the server was killed by signal {given.signal}"), given)
    return Blame("unknown", False, "the server ended without a word in its log about why")
