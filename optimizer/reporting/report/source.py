"""What a report is made from: a study's folder read once, finished or not, without writing to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from objectives.hypervolume import Axes
from objectives.objective import Objective
from objectives.titles import title_of
from optimizer.deployment.secrets import MASK, mask
from optimizer.errors import OptimizerError, UserError
from optimizer.profiles.loader import parse_profile
from optimizer.profiles.profile import Profile
from optimizer.reporting.answer import assemble
from optimizer.reporting.front import load_front
from optimizer.reporting.front_writer import reference_of
from optimizer.reporting.member import Front, FrontMember, FrontMeta
from optimizer.study.calibration import Calibration
from optimizer.study.confirmation import Confirmation
from optimizer.study.folder import StudyFolder
from optimizer.study.lock import LOCK_FILE, read_owner
from optimizer.study.manifest import Manifest, load_manifest
from optimizer.study.record import StudyRecord
from optimizer.study.terms import Terms
from optimizer.study.trial_record import State, TrialRecord

Status = Literal["finished", "running", "interrupted"]


@dataclass(frozen=True)
class Source:
    """A study as it stands at one moment."""

    folder: StudyFolder
    manifest: Manifest
    profile: Profile
    status: Status
    trials: tuple[TrialRecord, ...]
    terms: Terms
    front: Front
    calibration: Calibration | None
    """None: it ended before its reference was measured."""
    events: tuple[Mapping[str, Any], ...]
    remarks: tuple[str, ...] = ()
    """What could not be read, for people."""

    @property
    def storage(self) -> str | None:
        """The URL of trials that lie elsewhere; None where its password is not kept, or they lie in the folder."""
        url = self.manifest.storage
        return url if url and MASK not in url else None

    @property
    def is_simulated(self) -> bool:
        return self.front.meta.is_simulated

    @property
    def picked(self) -> tuple[FrontMember, ...]:
        """Members with a name, the knee first."""
        return self.front.named

    @property
    def shown(self) -> tuple[FrontMember, ...]:
        """The picks and the reference, each once; where there is no pick, the nearest miss that was measured."""
        chosen = [*self.picked]
        if not chosen:
            chosen = [m for m in self.front.nearest_misses(len(self.front.trials)) if m.values is not None][:1]
        reference = self.front.reference
        return (*chosen, *([reference] if reference is not None and reference not in chosen else []))


def read_source(folder: StudyFolder, storage: str | None = None) -> Source:
    """Raises UserError where the folder holds no study that this version can read. `storage`: the URL of the trials."""
    manifest = load_manifest(folder.manifest_path)
    calibration = _calibration(manifest, folder.manifest_path)
    profile = parse_profile(manifest.profile_text, manifest.profile, manifest.profile)
    events = tuple(folder.events())
    stored = _stored_front(folder)
    read, remarks = _record(folder, storage or manifest.storage)
    remarks = remarks if manifest.calibration else ()  # no trial has begun: there is nothing to miss
    trials = read[0] if read is not None else _from_front(stored)
    terms = read[1] if read is not None else _terms(manifest)
    front = _front(folder, manifest, profile, calibration, trials, terms, stored)
    said = (*_smoke(terms), *remarks)
    return Source(folder, manifest, profile, _status(folder, events), trials, terms, front, calibration, events, said)


def _smoke(terms: Terms) -> list[str]:
    """Tails that are single requests decide nothing."""
    if not any("_max_" in o.metric for o in terms.objectives):
        return []
    return [
        "A short run: its tails are the slowest of a few dozen requests. It shows that everything works; decide nothing"
        " by it."
    ]


def _status(folder: StudyFolder, events: Sequence[Mapping[str, Any]]) -> Status:
    kinds = [e.get("event") for e in events]
    last = {k: i for i, k in enumerate(kinds)}
    if last.get("StudyFinished", -1) > last.get("TrialStarted", -1):
        return "finished"
    owner = read_owner(folder.path / LOCK_FILE)
    return "running" if owner is not None and owner.is_alive else "interrupted"


def _calibration(manifest: Manifest, path: Path) -> Calibration | None:
    if not manifest.calibration:
        return None
    try:
        return Calibration.from_json(manifest.calibration)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: its calibration is damaged ({error}); restore the file") from None


def _stored_front(folder: StudyFolder) -> Front | None:
    path = folder.front_path / "front.json"
    return load_front(path) if path.is_file() else None


def _record(folder: StudyFolder, storage: str) -> tuple[tuple[tuple[TrialRecord, ...], Terms] | None, tuple[str, ...]]:
    """Every trial from the study's storage; None where there is none yet, or it cannot be reached from here."""
    url = storage or folder.storage_url
    if not storage and not folder.database.is_file():
        return None, ()
    if MASK in url:
        return None, (f"the trials lie in {url}, whose password is not kept: give --storage",)
    try:
        record = StudyRecord.load(url, folder.path.name)
    except OptimizerError as error:
        return None, (f"the trials could not be read from their storage ({error}): stages and points are left out",)
    try:
        return (record.trials(), record.terms), ()
    finally:
        record.let_go()


def _terms(manifest: Manifest) -> Terms:
    words = [text.partition(" ") for text in manifest.objectives]
    objectives = tuple(Objective(metric, direction) for direction, _, metric in words)  # type: ignore[arg-type]
    return Terms(objectives, tuple(title_of(o.metric) for o in objectives), manifest.constraints)


def _from_front(front: Front | None) -> tuple[TrialRecord, ...]:
    return tuple(map(_trial_of, front.trials)) if front is not None else ()


def _trial_of(member: FrontMember) -> TrialRecord:
    state: State = "measured" if member.values is not None else "infeasible" if member.violations else "broken"
    return TrialRecord(
        member.trial, state, member.parameters(), member.values, member.violations, member.metrics, member.cause,
        None, None, "", attributes={"baseline": member.label} if member.label else {},
    )  # fmt: skip


def _front(
    folder: StudyFolder,
    manifest: Manifest,
    profile: Profile,
    calibration: Calibration | None,
    trials: Sequence[TrialRecord],
    terms: Terms,
    stored: Front | None,
) -> Front:
    """The exported front, unless trials have ended since: then it is put together anew, confirmations kept."""
    finished = {t.number for t in trials if t.is_finished}
    if stored is not None and finished <= {m.trial for m in stored.trials}:
        return stored
    meta = stored.meta if stored is not None else _meta(folder, manifest, profile, calibration, terms)
    if calibration is None:
        return Front(meta, ())
    axes = Axes(terms.objectives, calibration.values)
    again = [_confirmation(m) for m in stored.trials if m.note] if stored else []
    return assemble(trials, replace(meta, reference=reference_of(trials)), profile.instances, axes, again)


def _confirmation(member: FrontMember) -> Confirmation:
    return Confirmation(member.trial, member.is_confirmed, member.note, None, member.again)


def _meta(
    folder: StudyFolder, manifest: Manifest, profile: Profile, calibration: Calibration | None, terms: Terms
) -> FrontMeta:
    """What the study's own export would say, as far as the manifest knows it."""
    names = [o.metric for o in terms.objectives]
    return FrontMeta(
        study=folder.name,
        model=manifest.model,
        gpu=manifest.gpu,
        engine=manifest.engine,
        is_simulated=manifest.engine.startswith("simulator"),
        objectives=terms.objectives,
        workload_hash=manifest.workload.get("traffic", ""),
        profile=manifest.profile,
        workload=", ".join(dict.fromkeys(t.trace for t in profile.tenants)),
        rate_per_s=manifest.rate_per_s,
        versions=manifest.versions,
        noise=dict(zip(names, calibration.noise, strict=True)) if calibration else {},
        sharing=manifest.sharing,
    )


def masked(value: object) -> str:
    """Text for people, secrets masked."""
    return mask(str(value))


def read_json(path: Path) -> dict[str, Any] | None:
    """None for a file that is not there or is damaged: one run less in a sum is no reason for no report."""
    try:
        body = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) else None
