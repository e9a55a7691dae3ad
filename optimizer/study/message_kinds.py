"""Gaps between messages are not compared where trials send different numbers of tokens a message."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from optimizer.errors import UserError
from optimizer.profiles.profile import Profile

SEVERAL = frozenset({"speculative_config", "stream_interval"})
"""Searched, they change how many tokens a message holds: 40 ms between messages of four are no slower than 10 ms."""
_PER_MESSAGE = re.compile(r"^((?:\w+:)?steady_itl)_(p\d+|max|mean)_ms$")
_NO_OTHER = re.compile(r"(?:^|:)(?:steady_worst_itl\w*_ratio|(?:saturation|stress)_itl_\w+)$")


def per_token(profile: Profile, searched: Collection[str]) -> tuple[Profile, tuple[str, ...]]:
    """The profile with ITL per token where a searched flag changes the tokens of a message, and a line that says so.

    Raises UserError for an objective or a limit that has no figure per token."""
    flags = sorted(SEVERAL & set(searched))
    if not flags:
        return profile, ()
    notes: dict[str, None] = {}

    def renamed(metric: str) -> str:
        if _NO_OTHER.search(metric):
            raise UserError(
                f"{flags[0]}: changes how many tokens a message holds, and {metric} is counted between messages: leave"
                " the one or the other out"
            )
        found = _PER_MESSAGE.match(metric)
        if found is None:
            return metric
        name = f"{found[1]}_per_token_{found[2]}_ms"
        notes[f"{metric}: {flags[0]} is searched and changes the tokens of a message, so {name} is compared"] = None
        return name

    changed = replace(
        profile,
        objectives=tuple(replace(o, metric=renamed(o.metric)) for o in profile.objectives),
        limits=tuple(replace(x, metric=renamed(x.metric)) for x in profile.limits),
        relative_limits=tuple(replace(x, metric=renamed(x.metric)) for x in profile.relative_limits),
    )
    return changed, tuple(notes)
