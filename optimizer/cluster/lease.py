"""Which GPUs Ray leased to a worker, and which place among those of its node they have."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from optimizer.cluster.slots import Gpu
from optimizer.errors import Unavailable


def leased_gpus() -> tuple[str, ...]:
    """What Ray booked for this worker."""
    import ray

    return tuple(map(str, ray.get_runtime_context().get_accelerator_ids().get("GPU", ())))


def check_lease(visible: str | None, leased: Sequence[str], n_gpus: int) -> tuple[str, ...]:
    """The GPUs this worker may use: exactly those leased to it, and as many as its slot owns.

    Ray hides all GPUs from a task in a placement group that did not ask for some, and a runtime_env can override
    what Ray set; both end as "no CUDA GPUs are available" or as two trials on one card."""
    seen = tuple(v for v in (visible or "").split(",") if v)
    if len(leased) != n_gpus:
        raise Unavailable(
            f"{socket.gethostname()}: Ray leased {len(leased)} GPU(s) to a slot that owns {n_gpus}; "
            "start the slot with num_gpus, also inside a placement group"
        )
    if set(seen) != set(leased):
        raise Unavailable(
            f"{socket.gethostname()}: CUDA_VISIBLE_DEVICES is {visible!r} but Ray leased {','.join(leased)!r}; "
            "remove CUDA_VISIBLE_DEVICES from the runtime_env and from the start-up files of this node"
        )
    return seen


def find_leased(name: str, on_node: Sequence[Gpu]) -> Gpu | None:
    """The device that Ray means by `name`: an index, or (the beginning of) a UUID; None if nvidia-smi shows none.

    Raises Unavailable for a name that several devices have: CUDA takes the first slice of a card that is cut, and
    every worker on it would."""
    meant = [g for g in on_node if g.uuid == name] or [g for g in on_node if _is_named(g, name)]
    if len(meant) > 1:
        uuids = ",".join(g.uuid for g in meant)
        what = "MIG slices" if meant[0].parent else "GPUs"
        raise Unavailable(
            f"{socket.gethostname()}: Ray leased GPU {name!r}, which stands for {len(meant)} {what}; lease them by "
            f"UUID: on this node, CUDA_VISIBLE_DEVICES={uuids} ray start --num-gpus={len(meant)} …"
        )
    return meant[0] if meant else None


def _is_named(gpu: Gpu, name: str) -> bool:
    is_beginning = not name.isdigit() and (gpu.uuid.startswith(name) or gpu.parent.startswith(name))
    return name == str(gpu.index) or is_beginning


def slot_on_node(uuids: Sequence[str], on_node: Sequence[Gpu], slot: int) -> int:
    """The rank of the slot's GPUs among those of its node, in slots of its size.

    Where nvidia-smi does not show them: by their indices, if these are their names, else the number it was given."""
    ranks = [i for i, gpu in enumerate(on_node) if gpu.uuid in uuids]
    if not ranks and all(name.isdigit() for name in uuids):
        ranks = list(map(int, uuids))
    return min(ranks) // len(uuids) if ranks else slot
