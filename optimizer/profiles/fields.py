"""Checked reading of a YAML mapping: every error names the file and the field, the value and what is allowed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from optimizer.errors import UserError

MAX_LISTED = 12
"""Of more admissible values than this only the closest are listed."""


class Fields:
    """One mapping of a document at a known path. Values are taken out; what is left over is refused by `done`."""

    def __init__(self, source: str, path: str, mapping: object) -> None:
        self.source = source
        self.path = path
        if not isinstance(mapping, Mapping):
            self.refuse("", mapping, "a mapping of fields")
        self._left = dict(mapping)
        self._known: list[str] = []

    def refuse(self, name: str, value: object, wanted: str) -> NoReturn:
        where = ".".join(p for p in (self.path, name) if p) or "top level"
        raise UserError(f"{self.source}: {where}: {value!r} is not valid; expected {wanted}")

    def has(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, default: Any = ...) -> Any:
        """The raw value. Without a default the field is required."""
        self._known.append(name)
        if name not in self._left:
            if default is ...:
                where = ".".join(p for p in (self.path, name) if p)
                near = difflib.get_close_matches(name, map(str, self._left), n=1)
                hint = f"; {near[0]!r} is not a field, did you mean it?" if near else ""
                raise UserError(f"{self.source}: {where}: this field is missing{hint}")
            return default
        return self._left.pop(name)

    def text(self, name: str, default: Any = ...) -> str:
        value = self.take(name, default)
        if not isinstance(value, str) or not value.strip():
            self.refuse(name, value, "a non-empty text")
        return " ".join(value.split())

    def choice(self, name: str, allowed: Sequence[str], default: Any = ...) -> str:
        value = self.take(name, default)
        if value not in allowed:
            near = difflib.get_close_matches(str(value), allowed, n=3, cutoff=0.3) if len(allowed) > MAX_LISTED else ()
            more = f" ({len(allowed)} in all)" if near else ""
            self.refuse(name, value, "one of " + ", ".join(near or allowed) + more)
        return str(value)

    def number(
        self,
        name: str,
        default: Any = ...,
        *,
        above: float = -math.inf,
        at_least: float = -math.inf,
        at_most: float = math.inf,
    ) -> float:
        value = self.take(name, default)
        span = _span(above, at_least, at_most)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.refuse(name, value, f"a number {span}")
        if value <= above or value < at_least or value > at_most:
            self.refuse(name, value, f"a number {span}")
        return float(value)

    def optional_number(self, name: str, *, above: float = -math.inf) -> float | None:
        if self._left.get(name) is None:
            self.take(name, None)
            return None
        return self.number(name, above=above)

    def count(self, name: str, default: Any = ..., *, at_least: int = 1, at_most: float = math.inf) -> int:
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
            self.refuse(name, value, f"a whole number {_span(-math.inf, at_least, at_most)}")
        return value

    def section(self, name: str, default: Any = ...) -> Fields:
        return Fields(self.source, ".".join(p for p in (self.path, name) if p), self.take(name, default))

    def sections(self, name: str) -> list[tuple[str, Fields]]:
        """A mapping of named sections, in order."""
        outer = self.section(name)
        if not outer._left:
            self.refuse(name, {}, "at least one entry")
        return [(str(key), outer.section(key)) for key in list(outer._left)]

    def items(self, name: str, default: Any = ...) -> list[Fields]:
        value = self.take(name, default)
        if not isinstance(value, list):
            self.refuse(name, value, "a list")
        return [
            Fields(self.source, f"{self.path + '.' if self.path else ''}{name}[{i}]", v) for i, v in enumerate(value)
        ]

    def texts(self, name: str, default: Any = ...) -> tuple[str, ...]:
        value = self.take(name, default)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            self.refuse(name, value, "a list of names")
        return tuple(value)

    def checked(self, name: str, build: Callable[[], Any]) -> Any:
        """Run `build`; a ValueError it raises is reported at this field."""
        try:
            return build()
        except ValueError as error:
            where = ".".join(p for p in (self.path, name) if p)
            raise UserError(f"{self.source}: {where}: {error}") from None

    def done(self) -> None:
        """Refuse what nobody took: a misspelt field must not be ignored."""
        if self._left:
            name = next(iter(self._left))
            known = ", ".join(dict.fromkeys(self._known))
            where = ".".join(p for p in (self.path, str(name)) if p)
            raise UserError(f"{self.source}: {where}: unknown field; known here: {known}")


def _span(above: float, at_least: float, at_most: float) -> str:
    parts = []
    if above > -math.inf:
        parts.append(f"above {above:g}")
    if at_least > -math.inf:
        parts.append(f"from {at_least:g}")
    if at_most < math.inf:
        parts.append(f"up to {at_most:g}")
    return " ".join(parts) or "that is finite"
