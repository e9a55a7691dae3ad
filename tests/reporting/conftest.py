"""One small study, run once: what the report's tests read, whole or changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import pytest

from objectives.hypervolume import Axes
from objectives.objective import Objective
from objectives.titles import title_of
from optimizer.cli import run_main
from optimizer.reporting.answer import assemble
from optimizer.reporting.front_writer import reference_of
from optimizer.reporting.report.source import Source, read_source
from optimizer.run import main
from optimizer.study.folder import StudyFolder
from optimizer.study.names import find_study
from optimizer.study.trial_record import TrialRecord
from tests.small_study import SHARED, write_profile

NAME, TENANT = "<script>alert(1)</script> & co", "<img src=x onerror=alert(3)>"


def run_small(
    folder: Path, *changes: tuple[str, str], study: str = "small", n_trials: int = 6, confirm: str = "pick"
) -> Path:
    """A finished study of the small profile; its folder."""
    argv = ["--profile", write_profile(folder, *changes), "--workers", "0", "--study", study]
    hook = sys.excepthook
    with chdir(folder), open(os.devnull, "w") as nothing:
        out, sys.stdout = sys.stdout, nothing
        try:
            assert run_main(main, [*argv, "--n-trials", str(n_trials), "--confirm", confirm]) in (0, 1)
        finally:
            sys.stdout, sys.excepthook = out, hook
        return find_study(study, Path("studies")).resolve()


@pytest.fixture(scope="session")
def small_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_small(tmp_path_factory.mktemp("report"), ("  users:", f'  "{TENANT}":'), study=NAME)


@pytest.fixture(scope="session")
def small_source(small_path: Path) -> Source:
    return read_source(StudyFolder(small_path))


@pytest.fixture(scope="session")
def shared_source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Two servers on one card."""
    return read_source(StudyFolder(run_small(tmp_path_factory.mktemp("shared"), *SHARED, n_trials=3, confirm="none")))


def with_trials(source: Source, trials: Sequence[TrialRecord], objectives: Sequence[Objective] | None = None) -> Source:
    """The study as if these were its trials; picks and front are chosen anew."""
    assert source.calibration is not None
    own = tuple(objectives or source.terms.objectives)
    terms = replace(source.terms, objectives=own, labels=tuple(title_of(o.metric) for o in own))
    values = tuple(float(source.calibration.metrics[o.metric] or 1.0) for o in own)
    calibration = replace(source.calibration, values=values, noise=(0.02,) * len(own))
    noise = {o.metric: 0.02 for o in own}
    meta = replace(source.front.meta, objectives=own, noise=noise, reference=reference_of(trials))
    front = assemble(trials, meta, source.profile.instances, Axes(own, values))
    return replace(source, trials=tuple(trials), terms=terms, calibration=calibration, front=front)
