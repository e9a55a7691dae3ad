"""`ray up`'s own validation accepts ray_cluster.yaml, and every node installs the same wheel."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

import optimizer

FILE = Path(__file__).resolve().parents[2] / "ray_cluster.yaml"


@pytest.fixture(scope="module")
def raw() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


def accept(raw: dict[str, Any]) -> dict[str, Any]:
    """What `ray up` does before it touches a machine."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(copy.deepcopy(raw))
    validate_config(prepared)
    return prepared


def test_ray_up_accepts_the_file(raw: dict[str, Any]) -> None:
    prepared = accept(raw)
    node = prepared["available_node_types"][prepared["head_node_type"]]
    assert node["min_workers"] == node["max_workers"] == len(raw["provider"]["worker_ips"])


def test_a_misspelt_key_would_be_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="head_setup_comands"):
        accept({**raw, "head_setup_comands": []})


def test_every_node_installs_the_one_wheel_of_this_version(raw: dict[str, Any]) -> None:
    (remote, local), *others = raw["file_mounts"].items()
    assert not others
    assert Path(remote).name == Path(local).name == f"vllm_config_optimizer-{optimizer.__version__}-py3-none-any.whl"
    prepared = accept(raw)
    for role in ("head", "worker"):
        installs = [c for c in prepared[f"{role}_setup_commands"] if "pip" in c]
        assert len(installs) == 2 and all(str(Path(remote).parent) in c for c in installs)


def test_no_command_sets_the_visible_gpus(raw: dict[str, Any]) -> None:  # case RAY-01
    commands = [c for key, value in raw.items() if key.endswith("_commands") for c in value]
    assert commands and not any("CUDA_VISIBLE_DEVICES" in c for c in commands)
