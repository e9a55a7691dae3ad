"""Whether CUDA's Multi-Process Service is on: kernels of several processes then overlap instead of taking turns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil

DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"
"""CUDA's own, where CUDA_MPS_PIPE_DIRECTORY is not set."""


def is_daemon_running(environment: Mapping[str, str]) -> bool:
    """By the daemon's control pipe where CUDA would look for it. A pipe that a dead daemon left does not count."""
    directory = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPE_DIRECTORY)
    return (directory / "control").exists() and _is_daemon_alive(directory / "nvidia-cuda-mps-control.pid")


def _is_daemon_alive(pid_file: Path) -> bool:
    """True where its number is not to be had: the pipe may be mounted from outside this container."""
    try:
        return psutil.pid_exists(int(pid_file.read_text()))
    except (OSError, ValueError):
        return True
