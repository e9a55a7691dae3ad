"""What a study is called, and where it lives. A display name is kept as given; paths only ever see its slug."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import unicodedata
from pathlib import Path

from optimizer.errors import UserError

MAX_NAME_CHARS = 1000
MAX_SLUG_CHARS = 50
"""Before the hash. Slug and hash together stay within 63 characters, the length of a Kubernetes label value."""
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(10))}
"""Device names that Windows refuses as file names."""
_BAD_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
_BIDI = {chr(c) for c in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def checked_name(name: str) -> str:
    """`name` unchanged. Raises UserError with the reason when it is empty, too long, or no single printable line."""
    if not name.strip():
        raise UserError("--study: the name is empty; give at least one visible character")
    if len(name) > MAX_NAME_CHARS:
        raise UserError(f"--study: the name has {len(name)} characters; at most {MAX_NAME_CHARS} are kept")
    for position, char in enumerate(name):
        if unicodedata.category(char) in _BAD_CATEGORIES or char in _BIDI:
            raise UserError(
                f"--study: control character U+{ord(char):04X} at position {position + 1} of the name; remove it"
            )
    return name


def slug(name: str) -> str:
    """The folder's name: ASCII lower case, equal for equal names, different for different ones on every file system.

    A name that is already safe is its own slug; anything else gets a short hash of the whole name, so that
    `Study` and `study` stay apart where the file system ignores case."""
    text = unicodedata.normalize("NFC", checked_name(name))
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    safe = re.sub(r"[^a-z0-9_-]+", "-", ascii_text).strip("-_")[:MAX_SLUG_CHARS].strip("-_")
    if safe == text and safe not in _RESERVED:
        return safe
    return f"{safe or 'study'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def is_same_name(a: str, b: str) -> bool:
    """Equal up to Unicode composition, as two keyboards type it."""
    return unicodedata.normalize("NFC", a) == unicodedata.normalize("NFC", b)


def is_study(path: Path) -> bool:
    return (path / "manifest.json").is_file() or (path / "study.db").is_file()


def display_name(path: Path) -> str:
    """The name in the folder's manifest; the folder's own name if it has none yet."""
    try:
        return str(json.loads((path / "manifest.json").read_text("utf-8"))["study"])
    except (OSError, ValueError, KeyError, TypeError):
        return path.name


def locate(name_or_path: str, studies_dir: Path) -> tuple[str, Path]:
    """(display name, folder) of a study that may not exist yet.

    An existing study folder (or its study.db) is taken by path; everything else is a name, whose folder is always
    directly inside `studies_dir`: `../../x` is a name like any other. Raises UserError for a bad name, or one whose
    folder is taken by another study."""
    given = _existing_folder(name_or_path)
    if given is not None:
        return display_name(given), given
    folder = studies_dir / slug(name_or_path)
    if is_study(folder):
        owner = display_name(folder)
        if not is_same_name(owner, name_or_path) and owner != folder.name:
            raise UserError(
                f"--study {name_or_path!r}: its folder {folder} belongs to the study {owner!r}; choose another name"
            )
    return name_or_path, folder


def find_study(name_or_path: str, studies_dir: Path) -> Path:
    """The folder of an existing study. Raises UserError that names what is there instead."""
    _, folder = locate(name_or_path, studies_dir)
    if is_study(folder):
        return folder
    known = [display_name(p) for p in list_studies(studies_dir)]
    near = difflib.get_close_matches(name_or_path, known, n=3) or sorted(known)[:5]
    hint = f"there is {', '.join(repr(n) for n in near)}" if near else "there is none yet; start one with optimizer.run"
    raise UserError(f"no study {name_or_path!r} in {studies_dir}: {hint}")


def list_studies(studies_dir: Path) -> tuple[Path, ...]:
    """Folders of all studies, oldest first."""
    if not studies_dir.is_dir():
        return ()
    found = [p for p in studies_dir.iterdir() if p.is_dir() and is_study(p)]
    return tuple(sorted(found, key=lambda p: (p.stat().st_ctime, p.name)))


def next_free(profile: str, studies_dir: Path) -> str:
    """`<profile>-<n>` with the smallest n from 1 whose folder is not there; of a profile file its stem counts."""
    stem = Path(profile).stem if profile.endswith((".yaml", ".yml")) else profile
    n = 1
    while (studies_dir / slug(f"{stem}-{n}")).exists():
        n += 1
    return f"{stem}-{n}"


def _existing_folder(text: str) -> Path | None:
    """The study folder that `text` is a path of; None if it is none. A bare word is a name, not a path."""
    path = Path(text)
    if len(path.parts) < 2 or "\0" in text or len(text) > 4096:
        return None
    try:
        folder = path.parent if path.name == "study.db" else path
        return folder if is_study(folder) else None
    except OSError:
        return None
