"""Which code is running: where our three packages come from, and a hash that two machines can compare.

`optimizer`, `objectives` and `search_spaces` are ordinary words, so another distribution or a folder in the current
directory can stand in front of one of them; the program would then fail far away, or measure with foreign code.
`check_identity` refuses that, naming both owners. It accepts a wheel, an editable install and a bare source checkout:
what it asks is that all three packages come from the tree this file lies in, and that nobody else claims them there.

It cannot speak when `optimizer` as a whole is somebody else's: then nothing of this file is ever imported.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optimizer.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import Distribution

DISTRIBUTION = "vllm-config-optimizer"
PACKAGES = ("optimizer", "objectives", "search_spaces")
ROOT = Path(__file__).resolve().parents[1]
"""The folder our packages lie in: site-packages, or the project folder of a checkout or editable install."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a worker reports before its first trial. Equal `package_hash` means equal code, however it was installed."""

    version: str
    package_hash: str
    origin: str | None
    """`git:<commit>`, `wheel:<hash>` as pip recorded it, or None when pip recorded nothing (an index install)."""
    location: str

    @property
    def text(self) -> str:
        origin = f", {self.origin}" if self.origin else ""
        return f"{DISTRIBUTION} {self.version} (code {self.package_hash[:12]}{origin}) from {self.location}"


def identify() -> Identity:
    from optimizer import __version__

    return Identity(__version__, package_hash(), _origin(), str(ROOT))


@functools.cache
def package_hash() -> str:
    """SHA-256 (hex) over path and content of every .py file of our three packages; data files are left out, because a
    trial carries its own."""
    import hashlib

    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(ROOT).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def check_identity() -> None:
    """Raise UserError unless all three packages are ours and only ours."""
    check_places()
    for package in PACKAGES:
        for rival in _claimants(package):
            raise UserError(
                f"{ROOT / package} belongs to two distributions, {_name(rival)} and {_our_name()}: each overwrites the "
                f"other's files; install {DISTRIBUTION} into an environment of its own, or `pip uninstall "
                f"{rival.metadata['Name']}` and then `pip install --force-reinstall --no-deps {DISTRIBUTION}`"
            )


def check_places() -> None:
    """The cheap half of `check_identity`: where each package is imported from. Reads no metadata unless it refuses."""
    for package in PACKAGES:
        place = _place(package)
        if place is None:
            raise UserError(f"{package} is missing beside optimizer in {ROOT}; reinstall {DISTRIBUTION}")
        if place == ROOT / package and not (place / "__init__.py").is_file():
            raise UserError(f"{place} has lost its __init__.py; reinstall {DISTRIBUTION}")
        if place != ROOT / package:
            raise UserError(_shadow_text(package, place))


def stop_if_shadowed() -> None:
    """For `python -m optimizer.X`, called while that module is still being located, before it imports anything that
    may not be ours: prints the one line and exits 2, since an exception would be a traceback to the user."""
    try:
        check_places()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def _place(package: str) -> Path | None:
    """The folder (or single file) that `import package` takes; None if there is none."""
    from importlib.util import find_spec

    spec = find_spec(package)
    if spec is None:
        return None
    if spec.submodule_search_locations is None:
        return Path(spec.origin or "built-in").resolve()
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def _shadow_text(package: str, place: Path) -> str:
    owner = _owner(place)
    theirs = _name(owner) if owner else "a stray folder or file that no installed distribution owns"
    if owner:
        advice = f"`pip uninstall {owner.metadata['Name']}`, or install {DISTRIBUTION} into an environment of its own"
    else:
        advice = f"rename {place}, or run from another folder"
    ours = f"{ROOT / package} ({_our_name()})"
    return f"the package {package!r} is taken from {place} ({theirs}) and not from {ours}; {advice}"


def _owner(place: Path) -> Distribution | None:
    return next((d for d in _distributions() if _claims(d, place)), None)


def _claimants(package: str) -> list[Distribution]:
    """Distributions other than ours that installed the very folder our package lies in."""
    return [d for d in _distributions() if not _is_ours(d) and _claims(d, ROOT / package)]


def _claims(distribution: Distribution, place: Path) -> bool:
    """Whether it installed `place`, by its RECORD, its egg-info's top_level.txt, or its editable project folder."""
    editable = _editable_root(distribution)
    if editable is not None:
        return editable == place.parent
    if Path(str(distribution.locate_file(""))).resolve() != place.parent:
        return False
    entry = place.name if place.suffix else f"{place.name}/"
    record = distribution.read_text("RECORD")
    if record is not None:
        return record.startswith(entry) or f"\n{entry}" in record
    return place.stem in (distribution.read_text("top_level.txt") or "").split()


def _distributions() -> Iterator[Distribution]:
    from importlib.metadata import distributions

    return iter(distributions())


def _is_ours(distribution: Distribution) -> bool:
    return (distribution.metadata["Name"] or "").lower().replace("_", "-") == DISTRIBUTION


def _our_name() -> str:
    found = next((d for d in _distributions() if _is_ours(d) and _claims(d, ROOT / "optimizer")), None)
    return _name(found) if found else f"{DISTRIBUTION}, source checkout"


def _name(distribution: Distribution) -> str:
    return f"{distribution.metadata['Name']} {distribution.version}"


def _direct_url(distribution: Distribution) -> dict[str, Any]:
    """PEP 610: where pip took it from; empty for an index install."""
    import json

    text = distribution.read_text("direct_url.json")
    return dict(json.loads(text)) if text else {}


def _editable_root(distribution: Distribution) -> Path | None:
    from urllib.parse import unquote, urlparse

    direct = _direct_url(distribution)
    if not direct.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlparse(direct["url"]).path)).resolve()


def _origin() -> str | None:
    for distribution in _distributions():
        if _is_ours(distribution) and _claims(distribution, ROOT / "optimizer"):
            direct = _direct_url(distribution)
            if commit := direct.get("vcs_info", {}).get("commit_id"):
                return f"git:{commit}"
            if archive := direct.get("archive_info", {}).get("hash"):
                return f"wheel:{archive}"
    return _checkout_commit() if (ROOT / ".git").exists() else None


def _checkout_commit() -> str | None:
    """None where git is missing or the checkout has no commit yet. Edits on top of it show in `package_hash` only."""
    import subprocess

    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"git:{done.stdout.strip()}"
