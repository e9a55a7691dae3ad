"""Everything vLLM exports at one moment, and what it gained until a later one: counters and whole histograms.

`exposition.Scrape` is what is read every second; this is read at the begin and the end of a watch. A counter that fell
was reset by a restart and counts on from 0. Metrics of anything but vLLM are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from optimizer.engines.vllm.exposition import parse_line

PREFIX = "vllm:"
HTTP = "http_requests_total"
"""Of prometheus-fastapi-instrumentator, which vLLM's front end uses: answers by handler and class of status."""
Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Reading:
    """(sample name, labels) -> value."""

    values: Mapping[Key, float]

    @property
    def engines(self) -> frozenset[str]:
        """Labels of engines that were there; "" for what belongs to none of them."""
        found = {dict(labels)["engine"] for _, labels in self.values if "engine" in dict(labels)}
        return frozenset({"", *found}) if found else frozenset()

    def labels(self, name: str) -> tuple[dict[str, str], ...]:
        """Of every sample of that name: information is exported as labels of a sample that is 1."""
        return tuple(dict(labels) for found, labels in self.values if found == name)


def read_all(text: str) -> Reading:
    """Raises ValueError, naming the line, for a text that is not in Prometheus' format."""
    rows = [(i, row) for i, row in enumerate(text.splitlines(), 1) if row.startswith((PREFIX, HTTP))]
    parsed = (parse_line(number, row) for number, row in rows)
    return Reading({(name, frozenset(labels.items())): v for name, labels, v in parsed if math.isfinite(v)})


@dataclass(frozen=True)
class Histogram:
    """Observations by bucket. Upper edges ascend, the last is infinite."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    total: float
    """Sum of all observations."""

    @property
    def n(self) -> float:
        return math.fsum(self.counts)

    @property
    def mean(self) -> float | None:
        return self.total / self.n if self.n else None

    def between(self, percent: float) -> tuple[float, float] | None:
        """The bucket that holds a percentile; all that is known of it for sure. None without observations."""
        if not self.n:
            return None
        index = self._bucket_of(percent)
        return self._low(index), self.edges[index]

    def percentile(self, percent: float) -> float | None:
        """Even within its bucket; in the lowest bucket what the mean leaves for it, in the infinite one its lower edge.
        None without observations."""
        if not self.n:
            return None
        index = self._bucket_of(percent)
        low, high = self._low(index), self.edges[index]
        if math.isinf(high):
            return low
        if index == 0:
            return min(self._mean_of_lowest(), high)
        below = math.fsum(self.counts[:index])
        return low + (high - low) * (percent / 100 * self.n - below) / self.counts[index]

    def above(self, value: float) -> float:
        """Observations that are surely above it."""
        return math.fsum(n for i, n in enumerate(self.counts) if self._low(i) >= value)

    def mean_above(self, value: float) -> float:
        """Of those, each at the middle of its bucket; 0 without any."""
        middles = [(self._middle(i), n) for i, n in enumerate(self.counts) if self._low(i) >= value]
        n = math.fsum(n for _, n in middles)
        return math.fsum(middle * n for middle, n in middles) / n if n else 0.0

    def draw(self, share: float) -> float:
        """The value that this share (0..1) of the observations lies below. Raises ValueError without observations."""
        found = self.percentile(100 * share)
        if found is None:
            raise ValueError("nothing was observed")
        return found

    def _bucket_of(self, percent: float) -> int:
        reached, wanted = 0.0, percent / 100 * self.n
        for index, n in enumerate(self.counts):
            reached += n
            if n and reached >= wanted:
                return index
        return max(i for i, n in enumerate(self.counts) if n)

    def _low(self, index: int) -> float:
        return self.edges[index - 1] if index else 0.0

    def _middle(self, index: int) -> float:
        """Of a bucket; of the infinite one its lower edge."""
        low, high = self._low(index), self.edges[index]
        return low if math.isinf(high) else (low + high) / 2

    def _mean_of_lowest(self) -> float:
        """The sum less what lies in the other buckets, taken at their middles."""
        others = math.fsum(n * self._middle(i) for i, n in enumerate(self.counts) if i)
        left = (self.total - others) / self.counts[0]
        return left if 0 < left <= self.edges[0] else self.edges[0] / 2


@dataclass(frozen=True)
class Gains:
    """What was counted between two readings. An engine that was not there at the first is left out: what it counted
    before is not known."""

    first: Reading
    last: Reading

    def of_engine(self, engine: str) -> Gains:
        """Only one engine's, with what has no engine label."""
        return Gains(_only(self.first, engine), _only(self.last, engine))

    def total(self, name: str, **labels: str) -> float | None:
        """Over all samples of that name (with or without `_total`) that carry these labels. None where the later
        reading has none."""
        gained = [n for _, n in self._of((f"{PREFIX}{name}_total", f"{PREFIX}{name}"), labels)]
        return math.fsum(gained) if gained else None

    def histogram(self, *names: str) -> Histogram | None:
        """The first of these that the server exports, over all its engines. None without it."""
        for name in names:
            by_edge: dict[float, float] = {}
            for found, n in self._of((f"{PREFIX}{name}_bucket",), {}):
                edge = _edge(found.get("le", ""))
                if edge is not None:
                    by_edge[edge] = by_edge.get(edge, 0.0) + n
            if math.inf in by_edge and len(by_edge) > 1:
                edges = tuple(sorted(by_edge))
                total = math.fsum(n for _, n in self._of((f"{PREFIX}{name}_sum",), {}))
                return Histogram(edges, tuple(_single([by_edge[e] for e in edges])), total)
        return None

    @property
    def http_errors(self) -> float:
        """Answers of the front end that were its own fault (5xx)."""
        return math.fsum(n for labels, n in self._of((HTTP,), {}) if labels.get("status", "").startswith("5"))

    def _of(self, names: Sequence[str], labels: Mapping[str, str]) -> Iterator[tuple[dict[str, str], float]]:
        wanted, engines = labels.items(), self.first.engines
        for name in names:
            found = [(key, v) for key, v in self.last.values.items() if key[0] == name and wanted <= set(key[1])]
            if engines:
                found = [(key, v) for key, v in found if dict(key[1]).get("engine", "") in engines]
            for key, value in found:
                before = self.first.values.get(key, 0.0)
                yield dict(key[1]), value - before if value >= before else value
            if found:
                return


def _only(reading: Reading, engine: str) -> Reading:
    own = {k: v for k, v in reading.values.items() if dict(k[1]).get("engine", engine) == engine}
    return Reading(own)


def _edge(text: str) -> float | None:
    """None for what is no edge of a bucket."""
    try:
        edge = float(text)
    except ValueError:
        return None
    return None if math.isnan(edge) else edge


def _single(cumulative: Sequence[float]) -> Iterator[float]:
    """Counts of each bucket out of counts up to each edge."""
    before = 0.0
    for value in cumulative:
        yield max(value - before, 0.0)
        before = value
