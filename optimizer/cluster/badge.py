"""What a worker says of itself before its first trial, and whether its code is ours."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass

from optimizer.cluster.slots import GpuClass
from optimizer.identity import Identity, identify


@dataclass(frozen=True)
class Badge:
    """Who a worker is: where it runs, which code, on which GPUs."""

    host: str
    pid: int
    identity: Identity
    python: str
    leased: tuple[str, ...] = ()
    """The GPUs it alone may use, by index or UUID as Ray names them; empty on a simulated slot."""
    gpus: tuple[GpuClass, ...] = ()
    """Their kinds; empty where nvidia-smi cannot tell."""

    @property
    def text(self) -> str:
        return f"{self.host} (pid {self.pid})"


def own_badge(leased: tuple[str, ...] = (), gpus: tuple[GpuClass, ...] = ()) -> Badge:
    return Badge(socket.gethostname(), os.getpid(), identify(), platform.python_version(), leased, gpus)


def strangeness(worker: Badge, driver: Badge, *, is_local: bool = False) -> str | None:
    """Why the worker's code is not the driver's, naming both; None if it is the same.

    The hash over the source decides: two trees of one version number can differ. On our own local Ray the place
    does, so that editing a checkout does not end the study that runs from it. The Python version may differ in its
    last figure only (Ray itself refuses more)."""
    if is_local and worker.identity.location == driver.identity.location:
        return None
    if worker.identity.package_hash != driver.identity.package_hash:
        return (
            f"the worker on {worker.text} runs {worker.identity.text}, this command runs {driver.identity.text}; "
            "install the same wheel on every node and start its Ray again"
        )
    if worker.python.split(".")[:2] != driver.python.split(".")[:2]:
        return (
            f"the worker on {worker.text} runs Python {worker.python}, this command runs Python {driver.python}; "
            "use one minor version on every node"
        )
    return None
