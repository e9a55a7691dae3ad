"""What a worker says of itself before its first trial, and whether it may take part."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass, field

from optimizer.cluster.slots import GpuClass
from optimizer.errors import UserError
from optimizer.identity import Identity, identify

SURPLUS = "not needed"
"""The refusal of a worker beyond those wanted; no fault of its own."""


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


def gpu_mismatch(worker: Badge, wanted: GpuClass) -> str | None:
    """Why the worker's GPUs cannot serve a study on `wanted`; None if they can."""
    wrong = [kind.text for kind in worker.gpus if kind != wanted]
    if wrong or not worker.gpus:
        found = wrong[0] if wrong else "no GPU that nvidia-smi can tell"
        return (
            f"this study runs on {wanted.text}, the worker on {worker.text} has {found}; its results would not compare"
        )
    return None


@dataclass
class Admission:
    """Who may take part: our own code, on one kind of GPU."""

    driver: Badge
    gpu_class: GpuClass | None
    is_local: bool
    is_gpu_given: bool
    """True if the study names its kind: other cards stay idle. Else the first card seen sets it, and another one
    ends the study before it has mixed their results."""

    n_places: int | None = None
    """Workers wanted; None: all that come."""
    admitted: set[str] = field(default_factory=set)
    """Names of their slots; a slot whose worker was lost keeps its place."""

    def judge(self, slot: str, badge: Badge) -> str | None:
        refusal = self._judge(badge)
        if refusal is None and slot not in self.admitted and len(self.admitted) == self.n_places:
            return SURPLUS
        if refusal is None:
            self.admitted.add(slot)
        return refusal

    def _judge(self, badge: Badge) -> str | None:
        if stranger := strangeness(badge, self.driver, is_local=self.is_local):
            raise UserError(stranger)
        if self.gpu_class is None and badge.gpus:
            self.gpu_class = badge.gpus[0]
        mismatch = gpu_mismatch(badge, self.gpu_class) if self.gpu_class else None
        if mismatch and not self.is_gpu_given:
            raise UserError(f"{mismatch}; say which of them the study is for")
        return mismatch
