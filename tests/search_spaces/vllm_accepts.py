"""Runs inside an environment with vLLM: holds configurations against vLLM's own configuration check, no server started.

Usage: python vllm_accepts.py MODEL_DIR VERDICTS.json < CONFIGURATIONS.json   (lists of equal length; null = accepted)
"""

from __future__ import annotations

import json
import sys
from typing import Any

NOT_ENGINE = ("api_server_count",)
"""Flags of `vllm serve` that are not the engine's."""


def verdict(model: str, config: dict[str, Any]) -> str | None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    arguments = {k: v for k, v in config.items() if k not in NOT_ENGINE}
    if isinstance(arguments.get("speculative_config"), str):
        arguments["speculative_config"] = json.loads(arguments["speculative_config"])
    try:
        made = AsyncEngineArgs(model=model, skip_tokenizer_init=True, **arguments)
        resolved = made.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    scheduler = resolved.scheduler_config
    for name in ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold"):
        if name in config and getattr(scheduler, name) != config[name]:
            return f"{name} became {getattr(scheduler, name)}, {config[name]} was asked"
    return None


def main() -> None:
    configs = json.load(sys.stdin)
    verdicts = [verdict(sys.argv[1], config) for config in configs]
    with open(sys.argv[2], "w") as out:
        json.dump(verdicts, out)


if __name__ == "__main__":
    main()
