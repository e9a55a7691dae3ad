"""Mooncake and vLLM timed_trace: one JSON object a line with timestamp, input_length, output_length, hash_ids.

Mooncake (kvcache-ai/Mooncake, FAST25-release/traces) is in milliseconds with blocks of 512 tokens by definition; vLLM's
timed_trace and Qwen-Bailian use 16-token blocks and seconds. Other key names for the same columns are read too, and
a JSON array of such objects.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from optimizer.workload.fields import Fields, Role, find_fields
from optimizer.workload.lines import OVERLONG, is_content, line_blocks, open_text, unusable
from optimizer.workload.reading import Head, Reading, ReadOptions, TimeUnit
from optimizer.workload.rows import RowBuilder

NESTED = ("params", "sampling_params")
"""Keys under which a row keeps its sampling parameters, where they do not lie beside the lengths."""
COSTLY = frozenset(
    {
        "logprobs", "prompt_logprobs", "top_logprobs", "n", "best_of", "images", "image", "videos", "audio",
        "guided_json", "response_format", "structured_outputs", "tools",
    }
)  # fmt: skip
"""Parameters of a request that cost memory or time and are not replayed: a configuration that never met them may die of
the first one (prompt log-probabilities materialise prompt x vocabulary logits)."""
MAX_ARRAY_CHARS = 64 << 20
"""A JSON array is parsed whole; a larger one is refused with the command that turns it into lines."""

_UNIT_BY_BLOCK: dict[int, tuple[TimeUnit, str]] = {
    512: ("ms", "Mooncake's format is in ms: whole numbers beside block ids of 512 tokens")
}
_MAX_SCHEMAS = 1000


class MooncakeReader:
    name = "mooncake"
    looks_like = "JSON lines with timestamp, input_length, output_length and hash_ids"

    def sniff(self, head: Head, path: Path) -> float:
        if not head.lines[0].lstrip().startswith(("{", "[")):
            return 0.0
        return 0.9 if any('"hash_ids"' in line and '"input_length"' in line for line in head.lines) else 0.4

    def read(self, path: Path, options: ReadOptions) -> Reading:
        rows = _JsonRows(RowBuilder(path, self.name, options))
        elements = _whole_array(path)
        if elements is not None:
            rows.add(list(range(1, len(elements) + 1)), elements, lambda i: json.dumps(elements[i])[:200])
            told = ("the file is one JSON array, not JSON lines: rows are numbered by element",)
            return rows.builder.finish(_UNIT_BY_BLOCK, (*told, *rows.not_replayed()))
        with open_text(path) as text:
            for number, lines in line_blocks(text):
                rows.parse(number, lines)
        return rows.builder.finish(_UNIT_BY_BLOCK, rows.not_replayed())


def _whole_array(path: Path) -> list[Any] | None:
    """The elements, when the file is one JSON array; None when it is JSON lines."""
    with open_text(path) as text:
        start = text.read(MAX_ARRAY_CHARS)
        if not start.lstrip().startswith("["):
            return None
        if text.read(1):
            hint = f"turn it into JSON lines with: jq -c '.[]' {path.name} > {path.stem}.jsonl"
            raise unusable(path, f"it is a JSON array of more than {MAX_ARRAY_CHARS >> 20} Mi characters; {hint}")
    try:
        value = json.loads(start)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


class _JsonRows:
    """JSON values -> cells. Keys are matched to roles once for every set of keys that occurs."""

    def __init__(self, builder: RowBuilder) -> None:
        self.builder = builder
        self._schemas: dict[tuple[str, ...], Fields] = {}
        self._first: Fields | None = None
        self._costly: Counter[str] = Counter()

    def not_replayed(self) -> tuple[str, ...]:
        """One line on the sampling parameters that the rows carry and the replay does not."""
        if not self._costly:
            return ()
        shown = ", ".join(f"{name} ({n:,} rows)" for name, n in self._costly.most_common())
        return (f"params not replayed: {shown}; what they cost in memory and time is in no figure",)

    def parse(self, number: int, lines: list[str]) -> None:
        numbers, values, texts = [], [], []
        for n, line in enumerate(lines, number):
            if not is_content(line):
                continue
            try:
                values.append(_parse(line))
            except (ValueError, RecursionError) as error:
                self.builder.reject(n, _why_not_json(line, error), line)
                continue
            numbers.append(n)
            texts.append(line)
        self.add(numbers, values, texts.__getitem__)

    def add(self, numbers: list[int], values: list[Any], text_of: Callable[[int], str]) -> None:
        kept, cells = [], dict[Role, list[Any]]()
        for role in ("time", "prompt", "output", "blocks", "session", "request", "tenant"):
            cells[role] = []
        for i, value in enumerate(values):
            problem = self._split(value, cells)
            if problem:
                self.builder.reject(numbers[i], problem, text_of(i))
            else:
                kept.append(i)
        if self._first is not None:
            self.builder.named_unit = self._first.unit
        self.builder.add([numbers[i] for i in kept], cells, lambda k: text_of(kept[k]))

    def _split(self, value: Any, cells: dict[Role, list[Any]]) -> str | None:
        """Append the value's cells; or say why it is no row."""
        if not isinstance(value, dict):
            return f"not a JSON object but {_JSON_NAMES.get(type(value), 'a number')}"
        self._costly.update(name for name in _parameters(value) if name in COSTLY)
        fields = self._fields_of(tuple(value))
        if not fields.missing:
            self._first = self._first or fields
            if fields.unit != self._first.unit:
                return f"time key {fields.of['time']!r} names another unit than the first row's"
        for role, column in cells.items():
            name = fields.of.get(role)
            column.append(None if name is None else value[name])
        return None

    def _fields_of(self, keys: tuple[str, ...]) -> Fields:
        fields = self._schemas.get(keys)
        if fields is None:
            if len(self._schemas) >= _MAX_SCHEMAS:
                self._schemas.clear()
            fields = self._schemas[keys] = find_fields(keys)
        return fields


def _parameters(row: dict[str, Any]) -> Iterator[str]:
    """Names of what a row asks for, in it or in its own mapping; what is off (None, 0, false) is not asked for."""
    for own in (row, *(row.get(key) for key in NESTED)):
        if isinstance(own, dict):
            yield from (str(name) for name, value in own.items() if value and not (name == "n" and value == 1))


_JSON_NAMES: dict[type, str] = {list: "a list", str: "a string", bool: "a truth value", type(None): "null"}


def _parse(line: str) -> Any:
    """Like json.loads, but a key that stands twice in the row is a ValueError: which one is meant is unknown."""
    value = json.loads(line)
    if isinstance(value, dict) and line.count('":') > len(value):
        json.loads(line, object_pairs_hook=_refuse_twice)
    return value


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _why_not_json(line: str, error: Exception) -> str:
    if line is OVERLONG:
        return "line is too long"
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON ({error.msg})"
    return (
        "not valid JSON (nested too deeply)" if isinstance(error, RecursionError) else f"not valid JSON ({error})"[:100]
    )
