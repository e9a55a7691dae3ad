"""How far a watch is, for people: one line that is rewritten on a terminal, else one every half minute."""

from __future__ import annotations

from typing import TextIO

from optimizer.engines.vllm.exposition import Scrape

EVERY_S = 30.0


class WatchProgress:
    """Call it with the seconds gone and the newest reading."""

    def __init__(self, out: TextIO | None, span_s: float) -> None:
        """`out`: None where there is none (a closed stderr)."""
        self._out, self._span_s = out, span_s
        self._is_terminal = out is not None and out.isatty()
        self._told_s = -EVERY_S
        self._width = 0

    def __call__(self, gone_s: float, newest: Scrape | None) -> None:
        if not self._is_terminal and gone_s < self._told_s + EVERY_S:
            return
        self._told_s = gone_s
        line = f"watching {gone_s:.0f} of {self._span_s:.0f} s: {_state(newest)}"
        if self._is_terminal:
            self._print(f"\r{line:<{self._width}}")
            self._width = len(line)
        else:
            self._print(f"{line}\n")

    def close(self) -> None:
        if self._is_terminal and self._width:
            self._print(f"\r{'':<{self._width}}\r")

    def _print(self, text: str) -> None:
        """A line that cannot be written is no reason to lose the watch."""
        if self._out is not None:
            try:
                print(text, end="", file=self._out, flush=True)
            except (OSError, ValueError):
                self._out = None


def _state(newest: Scrape | None) -> str:
    if newest is None:
        return "no answer from /metrics"
    kv = "" if newest.kv_usage is None else f", KV cache {newest.kv_usage:.0%}"
    return f"{_number(newest.n_running)} running, {_number(newest.n_waiting)} waiting{kv} (Ctrl-C ends it early)"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"
