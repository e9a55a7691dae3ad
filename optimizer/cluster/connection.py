"""Reaching a Ray cluster without hanging on a dead one, and asking it up front whether there is room."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

from optimizer.errors import Unavailable, UserError

PROBE_S = 2.0
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""Client preface and an empty SETTINGS frame (RFC 9113, 3.4 and 6.5). A Ray head is gRPC and answers with its own."""


def probe(address: str) -> None:
    """Raise UserError for an address that is none, Unavailable for one where no Ray head answers within 2 s.

    `ray.init` on a dead address retries for more than ten minutes (Ray 2.60)."""
    host, port = parse_address(address)
    try:
        with socket.create_connection((host, port), timeout=PROBE_S) as connection:
            connection.sendall(HTTP2_HELLO)
            answer = connection.recv(9)
    except OSError as error:
        raise Unavailable(
            f"--ray-address {address}: no Ray head answers ({error.strerror or error}); start one with "
            "`ray start --head` or `ray up ray_cluster.yaml`, or leave the option out for a local Ray"
        ) from None
    if answer[3:4] != b"\x04":
        raise Unavailable(
            f"--ray-address {address}: something answers there, but not a Ray head (its port is 6379 by default)"
        )


def parse_address(address: str) -> tuple[str, int]:
    if "://" in address:
        raise UserError(
            f"--ray-address {address}: Ray Client addresses are not supported; run this command on a node of the "
            "cluster and give the head's host:port"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"--ray-address {address}: expected host:port of a Ray head, e.g. 10.0.0.5:6379")
    return host.strip("[]"), int(port)


def connect(address: str, namespace: str) -> None:
    """Join the Ray at `address` as a driver, silently. Raises Unavailable with Ray's own first line.

    Call it outside the main thread: there Ray leaves the process's SIGTERM handler alone."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    import ray

    _silence_notices()
    try:
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level=logging.ERROR,
            ignore_reinit_error=False,
        )
    except (RuntimeError, ConnectionError, ValueError, ray.exceptions.RayError) as error:
        raise Unavailable(f"cannot join the Ray cluster at {address}: {first_line(error)}") from None


def _silence_notices() -> None:
    """Ray prints notices about dead workers to the driver's standard output, whatever `log_to_driver` says (2.60,
    _private/worker.py listen_error_messages). The executor tells them as outcomes; they may not spoil our output."""
    import ray._private.worker as internals

    if hasattr(internals, "print_to_stdstream"):
        internals.print_to_stdstream = _drop


def _drop(*_: Any, **__: Any) -> None:
    pass


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def check_runtime_env(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a job (`ray job submit --runtime-env…`) that sets CUDA_VISIBLE_DEVICES: it overrides what Ray leases, so
    that every worker would use the same card."""
    job = json.loads(environment.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    variables = (job.get("runtime_env") or {}).get("env_vars") or {}
    if "CUDA_VISIBLE_DEVICES" in variables:
        raise UserError(
            f"the job's runtime_env sets CUDA_VISIBLE_DEVICES={variables['CUDA_VISIBLE_DEVICES']!r}, which overrides "
            "the GPUs that Ray leases to each worker; remove it from env_vars"
        )


def count_room(nodes: list[dict[str, Any]], n_gpus_each: int) -> dict[str, int]:
    """Node -> slots it can hold, by its total resources. A slot never spans nodes."""
    room = {}
    for node in (n for n in nodes if n.get("Alive")):
        resources = node.get("Resources", {})
        n_by_gpu = int(resources.get("GPU", 0) // n_gpus_each) if n_gpus_each else None
        n_by_cpu = int(resources.get("CPU", 0))
        room[str(node.get("NodeManagerAddress"))] = n_by_cpu if n_by_gpu is None else min(n_by_cpu, n_by_gpu)
    return room


def most_on_a_node(nodes: list[dict[str, Any]], n_gpus_each: int, n_slots: int) -> int:
    """The most of these slots that any one node can get; they divide its cores among them."""
    return max(1, min(n_slots, max(count_room(nodes, n_gpus_each).values(), default=1)))


def fit_slots(nodes: list[dict[str, Any]], n_gpus_each: int, asked: int | None, address: str) -> int:
    """The number of slots on this cluster: all it holds, or fewer if asked.

    Raises UserError when it cannot hold them: Ray would let the rest wait for ever."""
    room = count_room(nodes, n_gpus_each)
    total = sum(room.values())
    need = f"{n_gpus_each} GPU(s) and 1 CPU on one node" if n_gpus_each else "1 CPU"
    held = ", ".join(f"{node}: {n}" for node, n in room.items()) or "no live node"
    if total == 0 or (asked or 0) > total:
        raise UserError(
            f"the Ray cluster at {address} has room for {total} worker(s) ({held}), each needs {need}; "
            f"asked for {asked or 'at least 1'}: use --workers {max(total, 1)} or add nodes"
        )
    return asked or total
