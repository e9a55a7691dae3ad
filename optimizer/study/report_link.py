"""The report of a study that is done, linked in optuna-dashboard."""

from __future__ import annotations

from optuna.exceptions import StorageInternalError

from optimizer.errors import OptimizerError
from optimizer.study.board_artifacts import Attachment, StudyArtifacts
from optimizer.study.board_attributes import StudyAttributes
from optimizer.study.board_files import with_file
from optimizer.study.dashboard import REPORT
from optimizer.study.folder import StudyFolder
from optimizer.study.lock import LOCK_FILE, read_owner
from optimizer.study.manifest import load_manifest
from optimizer.study.record import StudyRecord


def link_report(folder: StudyFolder, storage: str | None = None) -> str | None:
    """Put the folder's report among the study's files and into its note. None when done, else one line why not.

    Never raises for a storage, a dashboard or a folder that cannot be written: a report is good without a link. While a
    driver runs it links the report itself. `storage`: the URL, where the study does not lie in its folder."""
    owner = read_owner(folder.path / LOCK_FILE)
    if owner is not None and owner.is_alive:
        return "optuna-dashboard: the study is being run; its driver links the report with its next refresh"
    try:
        if storage is None and load_manifest(folder.manifest_path).storage:
            return "optuna-dashboard: the study lies in another storage; give --storage to link the report there"
        if storage is None and not folder.database.is_file():
            return f"optuna-dashboard: there is no {folder.database} to link the report in"
        _link(folder, storage or folder.storage_url)
    except (StorageInternalError, OptimizerError, OSError, ImportError) as error:
        return f"optuna-dashboard: the report is not linked there: {(str(error).splitlines() or [''])[0]}"
    return None


def _link(folder: StudyFolder, url: str) -> None:
    from optuna_dashboard import get_note, save_note

    content = folder.report_path.read_bytes()
    record = StudyRecord.load(url, folder.path.name)
    try:
        study = record.study
        artifacts = StudyArtifacts(study, StudyAttributes(study), folder.artifacts_path)
        artifacts.put(Attachment(folder.report_path.name, content), REPORT)
        note = get_note(study)
        link = next(x for x in artifacts.links() if x.name == folder.report_path.name)
        changed = with_file(note, link)
        if changed != note:
            save_note(study, changed)
    finally:
        record.close_storage()
