"""Which workers may take part in a study: our own code, one kind of GPU, one engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from optimizer.cluster.badge import Badge, strangeness
from optimizer.cluster.slots import GpuClass
from optimizer.errors import UserError
from search_spaces.hardware import find_gpu

SURPLUS = "not needed"
"""The refusal of a worker beyond those wanted; no fault of its own."""


def gpu_mismatch(worker: Badge, wanted: GpuClass) -> str | None:
    """Why the worker's GPUs cannot serve a study on `wanted`; None if they can."""
    wrong = [kind.text for kind in worker.gpus if kind != wanted]
    if wrong or not worker.gpus:
        return _refusal(worker, wanted.text, wrong[0] if wrong else NO_GPU)
    return None


def card_mismatch(worker: Badge, wanted: str) -> str | None:
    """The same for a study on whole cards of one name in our table of GPUs; its facts are not those of a slice."""
    wrong = [kind.text for kind in worker.gpus if kind.mig_profile or _table_name(kind.name) != wanted]
    if wrong or not worker.gpus:
        return _refusal(worker, wanted, wrong[0] if wrong else NO_GPU)
    return None


NO_GPU = "no GPU that nvidia-smi can tell"


def _refusal(worker: Badge, wanted: str, found: str) -> str:
    return f"this study runs on {wanted}, the worker on {worker.text} has {found}; its results would not compare"


def _table_name(name: str) -> str | None:
    """None for a card that the table lacks."""
    try:
        return find_gpu(name).name
    except ValueError:
        return None


@dataclass
class Admission:
    """Judges workers one after another: their code and GPUs by their badge, then the engine they have built."""

    driver: Badge
    gpu_class: GpuClass | None
    is_local: bool
    is_gpu_given: bool
    """True if the study names its kind: other cards stay idle. Else the first card seen sets it, and another one
    ends the study before it has mixed their results."""

    n_places: int | None = None
    """Workers wanted; None: all that come."""
    gpu_name: str | None = None
    """The card wanted, by its name in the table: others stay idle. None: any."""
    engine_identity: str | None = None
    """The engine wanted: workers that have another stay idle. None: the first one's, and another one ends the study."""
    admitted: set[str] = field(default_factory=set)
    """Names of their slots; a slot whose worker was lost keeps its place."""

    def __post_init__(self) -> None:
        self._is_engine_given = self.engine_identity is not None
        try:
            self.gpu_name = self.gpu_name and find_gpu(self.gpu_name).name
        except ValueError as error:
            raise UserError(f"--gpu: {error}") from None

    @property
    def is_choosy(self) -> bool:
        """Whether a worker may be refused and another, elsewhere, take its place."""
        return self.gpu_class is not None or self.gpu_name is not None or self._is_engine_given

    def judge(self, slot: str, badge: Badge) -> str | None:
        """Why the slot's worker need not build an engine; None if it may.

        Raises UserError for a difference that the study has not said how to decide."""
        refusal = self._judge(badge)
        return SURPLUS if refusal is None and self._is_full(slot) else refusal

    def judge_engine(self, slot: str, worker: Badge, identity: str) -> str | None:
        """The same for its trials: none of its figures may come from another engine than the others'."""
        if self._is_full(slot):
            return SURPLUS
        if self.engine_identity is None:
            self.engine_identity = identity
        if identity != self.engine_identity:
            self.admitted.discard(slot)
            refusal = (
                f"this study measures {self.engine_identity}, the worker on {worker.text} has {identity}; its results "
                "would not compare: install one version on every node"
            )
            if not self._is_engine_given:
                raise UserError(refusal)
            return refusal
        self.admitted.add(slot)
        return None

    def _is_full(self, slot: str) -> bool:
        return slot not in self.admitted and len(self.admitted) == self.n_places

    def _judge(self, badge: Badge) -> str | None:
        if stranger := strangeness(badge, self.driver, is_local=self.is_local):
            raise UserError(stranger)
        if self.gpu_name and (wrong := card_mismatch(badge, self.gpu_name)):
            return wrong
        if self.gpu_class is None and badge.gpus:
            self.gpu_class = badge.gpus[0]
        mismatch = gpu_mismatch(badge, self.gpu_class) if self.gpu_class else None
        if mismatch and not self.is_gpu_given:
            raise UserError(f"{mismatch}; {self._advice}")
        return mismatch

    @property
    def _advice(self) -> str:
        if self.gpu_name is None:
            return "say which of them the study is for"
        return f"both are {self.gpu_name}: give all of them one power limit, or leave one kind out of the cluster"
