"""The file that `vllm serve --config FILE` reads: flat YAML, keys are flag names.

What is written survives `vllm serve`: it drops `x: false` (vLLM issue 51401), so a switch that is off is written
`no-x: true`; `null` would become the text "None", so what is not set is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import yaml

from optimizer.deployment.deployment import CurrentConfig, Deployment, Given, assemble
from optimizer.deployment.vllm_flags import ALIASES, FLAGS, SHORT, Flag, find_flag
from optimizer.errors import UserError

NESTED_SINCE = (0, 16)
"""First vLLM whose files take nested mappings (pull request 33193, merged January 2026); older ones take JSON text."""
MAX_ALIASES = 16
"""More YAML aliases than this are refused: a few lines of them can stand for gigabytes."""

_FOREIGN = {
    frozenset({"apiVersion", "kind"}): "a Kubernetes manifest",
    frozenset({"services"}): "a Docker Compose file",
}


def read_yaml(text: str, source: str) -> CurrentConfig:
    """Raises UserError naming `source` and the line for anything that is not flags with values."""
    notices: list[str] = []
    return assemble(yaml_flags(text, source, notices), source=source, notices=notices)


def yaml_flags(text: str, source: str, notices: list[str]) -> list[Given]:
    """The file's flags in order; adds to `notices` what vLLM itself would read differently."""
    loader = yaml.SafeLoader(_limited(text, source))
    try:
        root = loader.get_single_node()
        if root is None:
            raise UserError(f"{source}: holds no keys; write `flag: value` lines, e.g. max-num-seqs: 128")
        if not isinstance(root, yaml.MappingNode):
            kind = (
                "a list"
                if isinstance(root, yaml.SequenceNode)
                else "neither a `vllm serve` line nor `flag: value` lines"
            )
            raise UserError(f"{source} line {root.start_mark.line + 1}: holds {kind}; write `flag: value` lines")
        _refuse_foreign(root, source)
        return [_given(loader, key, value, source, notices) for key, value in root.value]
    except yaml.YAMLError as error:
        raise UserError(f"{source}{_explain(error)}") from None
    finally:
        loader.dispose()


def _limited(text: str, source: str) -> str:
    if not text.strip():
        raise UserError(f"{source}: is empty; write `flag: value` lines, e.g. max-num-seqs: 128")
    if len(re.findall(r"(?m)(?:^|[\s\[,:-])\*\w+", text)) > MAX_ALIASES:
        raise UserError(f"{source}: has more than {MAX_ALIASES} YAML aliases; write the values out")
    return text


def _refuse_foreign(root: yaml.MappingNode, source: str) -> None:
    keys = {str(key.value) for key, _ in root.value}
    for marks, kind in _FOREIGN.items():
        if marks <= keys:
            raise UserError(f"{source}: is {kind}, which is not read; give its `vllm serve` line, or the flags as YAML")


def _given(loader: yaml.SafeLoader, key: yaml.Node, node: yaml.Node, source: str, notices: list[str]) -> Given:
    line = key.start_mark.line + 1
    where = f"{source} line {line}"
    if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
        raise UserError(f"{where}: a key must be a flag's name; write merged or computed keys out")
    value = _value(loader, node, where)
    name = str(key.value).lstrip("-")
    if name != key.value or name in SHORT:
        notices.append(f"{where}: {key.value}: vLLM refuses this spelling in a file; exports write the full name")
    if value is False:
        notices.extend(_note_false(name, where))
        name, value = (name, value) if not name.startswith(("no-", "no_")) else (name[3:], True)
    return Given(name, value, where)


def _note_false(name: str, where: str) -> list[str]:
    found = find_flag(name.replace("_", "-"))
    if found is None or found[0].kind != "boolean":
        return []
    full = found[0].name
    meant = full if found[1] else f"no-{full}"
    return [f"{where}: read as {meant}; `vllm serve --config` drops a false and uses its default: write {meant}: true"]


def _value(loader: yaml.SafeLoader, node: yaml.Node, where: str) -> object:
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:timestamp":
        return str(node.value)
    value: object = loader.construct_object(node, deep=True)
    if isinstance(value, dict | list):
        try:
            return json.loads(json.dumps(value))
        except (TypeError, ValueError) as error:
            raise UserError(f"{where}: a value cannot be passed to vLLM as JSON ({error}); quote it") from None
    return value


def _explain(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", "") or "cannot be parsed")
    if problem.startswith("but "):
        problem = f"{getattr(error, 'context', '')} {problem}".strip()
    line = f" line {mark.line + 1}" if mark else ""
    hint = "; indent with spaces, not tabs" if "\\t" in problem else ""
    return f"{line}: not valid YAML: {problem}{hint}"


def write_yaml(deployment: Deployment, header: Iterable[str] = (), vllm_version: str = "") -> str:
    """The file's text. `header` becomes comments. Raises UserError for what a YAML file cannot pass to vLLM."""
    is_nested = not vllm_version or _release(vllm_version) >= NESTED_SINCE
    lines = [*comment(header), *comment(_left_out(deployment))]
    if deployment.model is not None:
        lines.append(_entry("model", _passable("model", deployment.model)))
    for name, value in deployment.flags().items():
        lines += [_entry(*pair) for pair in _pairs(name, value, is_nested)]
    return "\n".join(lines) + "\n"


def comment(lines: Iterable[str]) -> list[str]:
    """Comment lines; a text that holds line ends cannot break out of its comment."""
    return ["# " + " ".join(part.split()) if part else "#" for part in lines]


def _left_out(deployment: Deployment) -> list[str]:
    lines = [f"left out, looks like a secret: {name}" for name in deployment.withheld]
    lines += [f"left out, a shell fills it in: {n}: {text}" for n, text in deployment.shell_filled.items()]
    return lines + [f"set in the environment: {n}={value}" for n, value in deployment.environment.items()]


def _pairs(name: str, value: object, is_nested: bool) -> list[tuple[str, object]]:
    flag = FLAGS.get(ALIASES.get(name, name))
    if value is False and flag is not None:
        return [(f"no-{name}", True)] if flag.kind == "boolean" else []
    if isinstance(value, dict) and not is_nested:
        return [(name, json.dumps(value))]
    if isinstance(value, list):
        return [(name, _list_value(name, flag, value))]
    return [(name, _passable(name, value))]


def _list_value(name: str, flag: Flag | None, items: list[object]) -> object:
    if flag is not None and flag.kind == "json":
        return json.dumps(items)
    return [_passable(name, json.dumps(i) if isinstance(i, dict | list) else i) for i in items]


def _passable(name: str, value: object) -> object:
    """vLLM turns the file into words, so a text that begins with a hyphen would be taken for a flag."""
    if isinstance(value, str) and value.startswith("-") and not re.fullmatch(r"-\d+|-\d*\.\d+", value):
        raise UserError(
            f"{name}: {value!r} begins with a hyphen and cannot be passed in a YAML file; use --format command"
        )
    return value


def _entry(name: str, value: object) -> str:
    is_printable = json.dumps(value, ensure_ascii=False, default=str).isprintable()  # PyYAML folds raw U+0085
    return yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=is_printable, width=10**6).rstrip("\n")


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        raise UserError(f"vLLM version {version!r}: write it like 0.32.0")
    return int(found[1]), int(found[2])
