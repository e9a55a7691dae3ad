"""The command line of `optimizer.run` as checked values."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from optimizer.deployment.secrets import is_secret_name, mask
from optimizer.deployment.vllm_flags import REMOVED
from optimizer.engines.simulator.calibration import load_calibration
from optimizer.errors import UserError
from optimizer.study.confirmation import Scope
from optimizer.study.setup import SetupOptions
from optimizer.study.traffic import TrafficOptions
from search_spaces.overrides import Override, parse_overrides

MAX_SEED = 2**32 - 1
"""The largest seed that numpy's and Optuna's samplers take."""
MIN_RATE_PER_S = 1e-5
"""About one request a day."""


@dataclass(frozen=True)
class SessionOptions:
    """What one run was asked for."""

    setup: SetupOptions
    study: str | None
    studies: Path
    is_resume: bool
    storage: str | None
    n_workers: int | None
    """0 runs inline; None lets the executor choose."""
    ray_address: str | None
    engine: str
    sampler: str
    rate_per_s: float | None
    noise: float
    gpu_price_per_hour: float | None
    is_json: bool
    is_explaining_capacity: bool
    vllm_python: str | None = None
    """The Python that has vLLM, as given (a link into a virtual environment stays one); None: this one."""
    attach: Mapping[str, str] = field(default_factory=dict)
    """instance -> URL of a server that runs already; the key "" is for every instance that has none of its own"""
    is_attach_insisting: bool = False
    """Measure although requests of others run there."""
    attach_key_variable: str = ""
    """NAME of the environment variable with the running server's API key."""
    is_smoke: bool = False
    confirm: Scope | None = None
    """None: `confirmation.scope_of` decides by the engine."""
    simulator_calibration: Path | None = None
    """A file of `optimizer.calibrate`; None: step times are the table's."""
    metrics_port: int | None = None
    """Where progress is shown to Prometheus; 0 takes a free port, None shows none."""
    command: tuple[str, ...] = ()
    """The words that were typed behind `optimizer.run`."""

    def settings(self) -> dict[str, Any]:
        """For the manifest, beside what else decides what the study's numbers mean."""
        told = self.setup.calibrated
        return {
            "smoke": self.is_smoke or None,
            "attach": dict(self.attach),
            "confirm": self.confirm,
            **({} if told is None else {"calibration of the simulator": f"{told.fingerprint} ({told.learned_from})"}),
        }


def read_options(args: argparse.Namespace) -> SessionOptions:
    """Raises UserError naming the flag, the value and what is allowed."""
    is_recorded, rate = _rate(args.rate)
    if args.workers is not None and args.workers < 0:
        raise UserError(f"--workers {args.workers}: give 0 (inline) or more")
    if not 0 <= args.seed <= MAX_SEED:
        raise UserError(f"--seed {args.seed}: give a whole number from 0 to {MAX_SEED}")
    for flag, value in (("--model", args.model), ("--gpu", args.gpu)):
        if value is not None and not value.strip():
            raise UserError(f"{flag}: the name is empty; leave the flag out to take the profile's")
    if not 0 <= args.noise <= 10:
        raise UserError(f"--noise {args.noise:g}: give a scale from 0 (off) to 10")
    if args.gpu_price is not None and not (math.isfinite(args.gpu_price) and args.gpu_price > 0):
        raise UserError(f"--gpu-price {args.gpu_price:g}: give the price of one GPU hour, above 0")
    if args.gpus_per_server < 1:
        raise UserError(f"--gpus-per-server {args.gpus_per_server}: give at least 1")
    if args.max_model_len is not None and args.max_model_len < 2:
        raise UserError(f"--max-model-len {args.max_model_len}: give at least 2 tokens")
    return SessionOptions(
        setup=_setup(args, is_recorded),
        study=args.study,
        studies=Path(args.studies),
        is_resume=args.resume,
        storage=args.storage,
        n_workers=args.workers,
        ray_address=args.ray_address,
        engine=args.engine,
        sampler=args.sampler,
        rate_per_s=rate,
        noise=args.noise,
        gpu_price_per_hour=args.gpu_price,
        is_json=args.json_log,
        is_explaining_capacity=args.explain_capacity,
        vllm_python=_python(args.vllm_python),
        attach=_attach(args),
        is_attach_insisting=args.attach_anyway,
        attach_key_variable=_key_variable(args),
        is_smoke=args.smoke,
        simulator_calibration=args.simulator_calibration,
        metrics_port=args.metrics_port,
        command=tuple(getattr(args, "command", ())),
        confirm=args.confirm,
    )


def _setup(args: argparse.Namespace, is_recorded: bool) -> SetupOptions:
    return SetupOptions(
        profile=args.profile,
        model=args.model,
        gpu=args.gpu,
        sharing=args.gpu_sharing,
        current=named_files("--current", args.current, "INSTANCE"),
        traffic=TrafficOptions(
            traces=named_files("--trace", args.trace, "TENANT"),
            time_unit=args.time_unit,
            is_strict=args.strict,
            max_bad_rows=args.max_bad_rows,
            max_model_len=args.max_model_len,
            too_long=args.too_long,
            is_repeat_allowed=args.repeat_trace,
        ),
        is_recorded_rate=is_recorded,
        slos=tuple(args.slo),
        overrides=_overrides(args),
        space_file=_space_file(args.space),
        advanced=_names("--advanced", args.advanced),
        variants=_pairs("--model-variant", args.model_variant),
        n_gpus=args.gpus_per_server,
        n_trials=args.n_trials,
        seed=args.seed,
        calibrated=None if args.simulator_calibration is None else load_calibration(args.simulator_calibration),
        is_smoke=args.smoke,
    )


def _python(path: str | None) -> str | None:
    if path is not None and not (Path(path).is_file() and os.access(path, os.X_OK)):
        what = "is no program" if Path(path).exists() else "is not there"
        raise UserError(f"--vllm-python {path}: {what}; give the Python of the environment that has vLLM")
    return path and os.path.abspath(path)  # servers start elsewhere; a link into an environment stays one


def _attach(args: argparse.Namespace) -> dict[str, str]:
    """{instance or "": URL without a trailing slash or /v1}."""
    if args.attach_anyway and not args.attach:
        raise UserError("--attach-anyway: there is no --attach URL that it could insist on")
    if args.attach and args.engine == "simulator":
        raise UserError("--attach: a running server is measured, not simulated; leave --engine simulator out")
    if args.attach and (args.workers or 0) > 1:
        raise UserError(f"--workers {args.workers}: with --attach there is one server to measure; leave --workers out")
    found: dict[str, str] = {}
    for text in args.attach or ():
        name, equals, rest = text.partition("=")
        key, url = (name, rest) if equals and "/" not in name else ("", text)
        if key in found:
            raise UserError(f"--attach {mask(text)}: given twice for {key or 'everything'}")
        found[key] = _url(url)
    return found


def _key_variable(args: argparse.Namespace) -> str:
    """The key itself never stands on a command line: other users of the machine can read those."""
    name: str = args.attach_key_variable or ""
    if name and not args.attach:
        raise UserError("--attach-key-variable: there is no --attach URL that needs a key")
    if name and not os.environ.get(name):
        raise UserError(f"--attach-key-variable {mask(name)}: no environment variable of that name is set")
    return name


def _url(text: str) -> str:
    """Scheme, host and port; the API lies at the root."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or parts.fragment:
        raise UserError(f"--attach {mask(text)}: give http://HOST:PORT, or INSTANCE=http://HOST:PORT")
    if parts.username or parts.password:
        raise UserError("--attach: the URL holds a password, which would be recorded; give it without one")
    if parts.path.rstrip("/") not in ("", "/v1"):
        raise UserError(f"--attach {text}: the API must lie at the root of the server; give http://HOST:PORT")
    return f"{parts.scheme}://{parts.netloc}"


def _rate(text: str | None) -> tuple[bool, float | None]:
    if text is None:
        return False, None
    if text == "recorded":
        return True, None
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate >= MIN_RATE_PER_S):
        raise UserError(f"--rate {text}: give requests per second, at least {MIN_RATE_PER_S:g}, or `recorded`")
    return False, rate


def named_files(flag: str, texts: Sequence[str] | None, kind: str) -> dict[str, str]:
    """`NAME=FILE` or `FILE` -> {name or "": file}. A path that holds `=` and exists is a path."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, rest = text.partition("=")
        key, value = (name, rest) if equals and not Path(text).exists() and "/" not in name else ("", text)
        if not value.strip():
            raise UserError(f"{flag} {text}: the file's name is empty; write {flag} FILE or {flag} {kind}=FILE")
        if key in found:
            raise UserError(f"{flag} {text}: given twice for {key or 'everything'}")
        found[key] = value
    return found


def _names(flag: str, text: str | None) -> tuple[str, ...]:
    names = tuple(n.strip() for n in (text or "").split(",") if n.strip())
    if text is not None and not names:
        raise UserError(f"{flag} {text}: no name is given; write names with commas between them, or all")
    return names


def _pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UserError(f"{flag} {text}: write {flag} NAME=DIR")
        found[name] = value
    return found


def _overrides(args: argparse.Namespace) -> tuple[Override, ...]:
    for flag, texts in (("--set", args.set), ("--choices", args.choices), ("--add", args.add)):
        for name in (text.partition("=")[0].strip() for text in texts):
            if is_secret_name(name):
                raise UserError(
                    f"{flag} {name}: looks like a secret; give it to vLLM in its environment, not to a study"
                )
            bare = name.rpartition(".")[2].replace("_", "-")
            if bare in REMOVED:
                raise UserError(f"{flag} {name}: was removed in vLLM V1; {REMOVED[bare]}")
            if name.rpartition(".")[2] == "model":
                raise UserError(f"{flag} {name}: checkpoints are compared with --model-variant NAME=DIR")
    try:
        found = parse_overrides(args.set, args.range, args.choices, args.add)
    except ValueError as error:
        raise UserError(str(error)) from None
    knobs = sorted({o.name.rpartition(".")[2] for o in found} & {"kv_cache_memory_bytes", "gpu_memory_utilization"})
    if len(knobs) > 1:
        raise UserError(f"{' and '.join(knobs)}: give one of them, never both")
    return found


def _space_file(path: str | None) -> tuple[str, Any]:
    """(name for messages, the YAML mapping); empty without a file."""
    if path is None:
        return "", {}
    import yaml

    try:
        document = yaml.safe_load(Path(path).read_text("utf-8"))
    except OSError as error:
        raise UserError(f"--space {path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" (line {line + 1})"
        raise UserError(f"--space {path}: is not valid YAML{where}") from None
    section = document["space"] if isinstance(document, dict) and set(document) == {"space"} else document
    if not isinstance(section, dict) or not section:
        found = "nothing" if section is None else type(section).__name__
        raise UserError(f"--space {path}: expected a mapping of parameter names, got {found}")
    return path, section
