"""Request bodies as bytes, made without a JSON encoder: a prompt of 100,000 tokens takes about a millisecond."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.replay.plan import ReplayPlan, Target
from optimizer.replay.tokens import TokenRuns, safe_ids
from optimizer.replay.words import WORDS

PATHS = {"tokens": "/v1/completions", "chat": "/v1/chat/completions"}
STREAMED = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
"""Every message then says how many tokens came so far. `return_token_ids` would say it too, but sends the prompt's ids
back in the first message (vLLM 0.32 entrypoints/openai/completion/serving.py:369)."""
EXACT = {"ignore_eos": True, "temperature": 0}


class Bodies:
    """Makes the body of any row of a plan."""

    def __init__(self, plan: ReplayPlan) -> None:
        self._plan = plan
        n_symbols = len(WORDS) if plan.style == "chat" else safe_ids(plan.vocabulary).size
        self._runs = TokenRuns(plan.trace, n_symbols, plan.seed)
        self._heads = {t.instance: json.dumps(self._fields(t))[:-1].encode() for t in plan.targets}

    def body(self, row: int) -> bytes:
        head = self._heads[self._plan.target_of(row).instance]
        n = int(self._plan.trace.output_tokens[row])
        return b'%b, "max_tokens": %d, %b}' % (head, n, self._prompt(row))

    def n_bytes(self, row: int) -> int:
        """About how large the body of a row is, without making it."""
        return int(self._plan.trace.prompt_tokens[row]) * self._literals.itemsize

    def _fields(self, target: Target) -> dict[str, Any]:
        ours = {"model": target.model, **(STREAMED if target.is_streamed else {"stream": False})}
        salt = {"cache_salt": self._plan.cache_salt} if self._plan.cache_salt else {}
        exact = EXACT if self._plan.style == "tokens" else {}
        return {**ours, **salt, **exact, **target.extra_body}

    def _prompt(self, row: int) -> bytes:
        joined = self._literals[self._runs.ranks(row)].tobytes()
        if self._plan.style == "tokens":
            return b'"prompt": [%b]' % joined[:-1]
        return b'"messages": [{"role": "user", "content": "%b"}]' % b" ".join(joined.split())

    @cached_property
    def _literals(self) -> NDArray[np.bytes_]:
        """rank -> its text, all of one width so that a prompt is one gather: `  1234,` or ` word`."""
        if self._plan.style == "chat":
            width = max(map(len, WORDS)) + 1
            return np.array([word.rjust(width).encode() for word in WORDS])
        ids = safe_ids(self._plan.vocabulary)
        width = len(str(self._plan.vocabulary)) + 1
        return np.array([f"{i},".rjust(width).encode() for i in ids.tolist()])
