"""Config: the arguments one server is started with. Immutable, comparable by fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from search_spaces.parameter import Value


class Config(Mapping[str, Value]):
    """vLLM argument name (underscores) -> value. Order is kept for rendering and ignored for equality.

    `None` means "not given": the argument is left out and vLLM's default applies."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Value]) -> None:
        self._items: dict[str, Value] = {k: v for k, v in items.items() if v is not None}

    def __getitem__(self, key: str) -> Value:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._items == other._items

    def __repr__(self) -> str:
        return f"Config({self._items!r})"

    def __reduce__(self) -> Any:
        return (Config, (self._items,))

    @property
    def fingerprint(self) -> str:
        """12 hex digits of the SHA-256 over the sorted arguments: equal for equal configurations."""
        text = json.dumps(self._items, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def with_(self, **changes: Value) -> Config:
        return Config({**self._items, **changes})

    def int_(self, name: str, default: int | None = None) -> int:
        """The argument as a whole number. Raises KeyError if it is absent without a default."""
        value = self._items.get(name, default)
        if value is None:
            raise KeyError(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise ValueError(f"{name}: expected a whole number, got {value!r}")
        return int(value)

    def float_(self, name: str, default: float | None = None) -> float:
        value = self._items.get(name, default)
        if value is None:
            raise KeyError(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name}: expected a number, got {value!r}")
        return float(value)

    def arguments(self) -> tuple[str, ...]:
        """The `vllm serve` arguments, one argv item each: `--x`, `--no-x`, or `--name value`."""
        argv: list[str] = []
        for name, value in self._items.items():
            flag = name.replace("_", "-")
            if value is True:
                argv.append(f"--{flag}")
            elif value is False:
                argv.append(f"--no-{flag}")
            else:
                argv += [f"--{flag}", format_value(value)]
        return tuple(argv)


def format_value(value: Value) -> str:
    """A value as vLLM's parser reads it back to the same value (floats in their shortest exact form)."""
    if isinstance(value, float):
        return repr(float(value))
    return str(value)
