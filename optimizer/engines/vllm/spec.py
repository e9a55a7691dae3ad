"""What a real engine is made from; picklable and light to import."""

from __future__ import annotations

from dataclasses import dataclass

HANG_AFTER_S = 30.0
"""Silence with work and idle processes; four times that while they compute (`watchdog`)."""


@dataclass(frozen=True)
class VllmSpec:
    """Servers of one model that a slot starts, one set a trial."""

    model: str
    """What `vllm serve` is given: a directory or a Hugging Face id."""
    vocabulary: int
    """Token ids of prompts are drawn below it."""
    python: str | None = None
    """The Python that has vLLM; None: this one."""
    n_gpus: int = 1
    """GPUs of one slot; 0 on a CPU."""
    gpu_uuids: tuple[str, ...] = ()
    """The cards of this machine that the study may use, `n_gpus` for each slot; empty on a CPU and on a cluster."""
    cache_root: str = ""
    """VLLM_CACHE_ROOT of every trial, so that compiled graphs are reused; empty: vLLM's own."""
    hang_after_s: float = HANG_AFTER_S


@dataclass(frozen=True)
class AttachSpec:
    """Servers that are already running; they are measured, never started, stopped or changed."""

    urls: tuple[tuple[str, str], ...]
    """(instance, URL)"""
    vocabulary: int
    n_gpus: int = 1
    """GPUs that each server runs on, as the user says."""
    is_insisting: bool = False
    """Measure although requests of others run there."""
    api_key_variable: str = ""
