"""The identity check, in child processes whose sys.path is the situation under test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from optimizer.identity import DISTRIBUTION, PACKAGES, identify, package_hash

PROJECT = Path(__file__).resolve().parents[1]
CHECK = "from optimizer.identity import check_identity; check_identity(); print('ours')"


@dataclass(frozen=True)
class Site:
    """A folder that stands for site-packages, put on a child's path."""

    folder: Path

    def install(self, name: str, *files: str, version: str = "1.0") -> None:
        """A distribution as pip leaves it: metadata, and a RECORD of files that are there already or are made empty."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("".join(f"{f},,\n" for f in files))
        for file in files:
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / file).touch()

    def install_ours(self, version: str = "0.1.0") -> None:
        for package in PACKAGES:
            shutil.copytree(
                PROJECT / package, self.folder / package, ignore=shutil.ignore_patterns("__pycache__", "data")
            )
        self.install(DISTRIBUTION, *(f"{p}/__init__.py" for p in PACKAGES), version=version)


def run(*arguments: str, cwd: Path, path: tuple[Path, ...]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-S", *arguments]  # without the site-packages of this interpreter, where we may be
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path / "site")
    site.install_ours()
    return site


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "cwd").mkdir()
    return tmp_path / "cwd"


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str | Path) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert str(part) in done.stderr


def test_accepts_a_wheel_install(site: Site, cwd: Path) -> None:
    assert run("-c", CHECK, cwd=cwd, path=(site.folder,)).stdout == "ours\n"


def test_accepts_a_bare_checkout(cwd: Path) -> None:
    assert run("-c", CHECK, cwd=cwd, path=(PROJECT,)).stdout == "ours\n"


def test_accepts_a_checkout_in_front_of_a_wheel(site: Site, tmp_path: Path, cwd: Path) -> None:
    checkout = Site(tmp_path / "checkout")
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, checkout.folder / package, ignore=shutil.ignore_patterns("data"))
    done = run(
        "-c", f"{CHECK}; from optimizer.identity import ROOT; print(ROOT)", cwd=cwd, path=(checkout.folder, site.folder)
    )
    assert done.stdout == f"ours\n{checkout.folder}\n"


def test_accepts_a_namesake_later_on_the_path(site: Site, tmp_path: Path, cwd: Path) -> None:
    other = Site(tmp_path / "other")
    other.install("optimizer", "optimizer/__init__.py")
    assert run("-c", CHECK, cwd=cwd, path=(site.folder, other.folder)).stdout == "ours\n"


@pytest.mark.parametrize("package", ["objectives", "search_spaces"])
@pytest.mark.parametrize("module", ["optimizer.run", "optimizer.cli"])
def test_names_a_stray_package_in_the_current_folder(site: Site, cwd: Path, package: str, module: str) -> None:
    (cwd / package).mkdir()
    (cwd / package / "__init__.py").touch()
    done = run("-m", module, "--help", cwd=cwd, path=(site.folder,))
    assert_one_line(done, cwd / package, "stray", site.folder / package, f"{DISTRIBUTION} 0.1.0", "rename")


def test_names_a_stray_module_in_the_current_folder(site: Site, cwd: Path) -> None:
    (cwd / "objectives.py").touch()
    assert_one_line(run("-m", "optimizer.run", "--help", cwd=cwd, path=(site.folder,)), cwd / "objectives.py", "stray")


def test_a_folder_that_is_no_package_does_not_shadow_a_wheel(site: Site, cwd: Path) -> None:
    (cwd / "objectives").mkdir()
    assert run("-m", "optimizer.cli", "--help", cwd=cwd, path=(site.folder,)).returncode == 0


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_names_another_distribution_in_front(site: Site, tmp_path: Path, cwd: Path, package: str) -> None:
    other = Site(tmp_path / "other")
    other.install("someone-elses", f"{package}/__init__.py", version="3.1")
    done = run("-m", "optimizer.run", "--help", cwd=cwd, path=(other.folder, site.folder))
    assert_one_line(
        done, "someone-elses 3.1", other.folder / package, f"{DISTRIBUTION} 0.1.0", "pip uninstall someone-elses"
    )


def test_names_an_editable_distribution_in_front(site: Site, tmp_path: Path, cwd: Path) -> None:
    project = tmp_path / "their-project"
    (project / "objectives").mkdir(parents=True)
    (project / "objectives" / "__init__.py").touch()
    site.install("their-project", version="0.2")
    direct = {"url": project.as_uri(), "dir_info": {"editable": True}}
    (site.folder / "their_project-0.2.dist-info" / "direct_url.json").write_text(json.dumps(direct))
    assert_one_line(
        run("-m", "optimizer.run", "--help", cwd=cwd, path=(project, site.folder)), "their-project 0.2", project
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_names_a_distribution_that_owns_the_same_folder(site: Site, cwd: Path, package: str) -> None:
    site.install("optimizer-of-others", f"{package}/__init__.py", f"{package}/core.py", version="2.0")
    done = run("-m", "optimizer.run", "--help", cwd=cwd, path=(site.folder,))
    assert_one_line(done, "optimizer-of-others 2.0", f"{DISTRIBUTION} 0.1.0", site.folder / package, "pip uninstall")


def test_names_a_package_that_lost_its_init(site: Site, cwd: Path) -> None:
    (site.folder / "search_spaces" / "__init__.py").unlink()
    assert_one_line(run("-m", "optimizer.run", "--help", cwd=cwd, path=(site.folder,)), "search_spaces", "reinstall")


def test_names_a_package_that_is_missing(site: Site, cwd: Path) -> None:
    shutil.rmtree(site.folder / "objectives")
    assert_one_line(
        run("-m", "optimizer.run", "--help", cwd=cwd, path=(site.folder,)), "objectives is missing", "reinstall"
    )


def test_equal_code_has_an_equal_hash_wherever_it_lies(site: Site, cwd: Path) -> None:
    code = "from optimizer.identity import package_hash; print(package_hash())"
    assert run("-c", code, cwd=cwd, path=(site.folder,)).stdout.strip() == package_hash()


def test_one_changed_byte_changes_the_hash(site: Site, cwd: Path) -> None:
    with (site.folder / "objectives" / "pareto.py").open("a") as file:
        file.write("\n")
    code = "from optimizer.identity import package_hash; print(package_hash())"
    assert run("-c", code, cwd=cwd, path=(site.folder,)).stdout.strip() != package_hash()


def test_an_archive_install_reports_the_hash_pip_recorded(site: Site, cwd: Path) -> None:
    direct = {"url": "file:///dist/x.whl", "archive_info": {"hash": "sha256=abc123"}}
    (site.folder / "vllm_config_optimizer-0.1.0.dist-info" / "direct_url.json").write_text(json.dumps(direct))
    code = "from optimizer.identity import identify; print(identify().text)"
    assert "wheel:sha256=abc123" in run("-c", code, cwd=cwd, path=(site.folder,)).stdout


def test_a_checkout_reports_its_commit(site: Site, cwd: Path) -> None:
    git = ["git", "-C", str(site.folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    code = "from optimizer.identity import identify; print(identify().origin)"
    assert run("-c", code, cwd=cwd, path=(site.folder,)).stdout.strip() == f"git:{head}"


def test_text_names_version_and_hash() -> None:
    identity = identify()
    assert identity.version in identity.text and identity.package_hash[:12] in identity.text
