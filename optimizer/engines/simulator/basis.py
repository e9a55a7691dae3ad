"""What the step times of a model on a card rest on that no kernel measurement backs, said aloud."""

from __future__ import annotations

from search_spaces.hardware import GpuFacts
from search_spaces.kernels import Entry
from search_spaces.model import ModelFacts


def uncalibrated(model: ModelFacts, gpu: GpuFacts, tp: int = 1, kv_dtype_bytes: float | None = None) -> tuple[str, ...]:
    """One short phrase for each kernel family that such a server runs and that is assumed; empty: all are measured."""
    kernels = gpu.kernels
    found = [
        *_assumed("16-bit linear layers", kernels.gemm),
        *_weights(model, gpu),
        *_assumed("prefill attention", kernels.prefill),
        *_assumed("decode attention", kernels.decode),
        *_layers(model, kv_dtype_bytes),
    ]
    if kernels.mixed.factor != 1.0:
        found += _assumed("decode attention beside a prefill", kernels.mixed)
    if tp > 1:
        row = gpu.all_reduce_of(tp)
        found += _assumed(f"all-reduce over {tp} GPUs", row)
        if row.error is not None and row.n_gpus != tp:
            found.append(f"all-reduce over {tp} GPUs (that of {row.n_gpus})")
    return tuple(found)


def _assumed(what: str, entry: Entry) -> list[str]:
    return [] if entry.is_measured else [f"{what} ({entry.source})"]


def _weights(model: ModelFacts, gpu: GpuFacts) -> list[str]:
    width = model.weight_bytes_per_parameter
    if width >= 2:
        return []
    if width != 1 or gpu.fp8_flops is None:
        return [f"weights of {width:g} bytes (bf16 kernels, fewer bytes)"]
    fp8 = gpu.kernels.gemm_fp8
    return ["fp8 linear layers (bf16 kernels)"] if fp8 is None else _assumed("fp8 linear layers", fp8)


def _layers(model: ModelFacts, kv_dtype_bytes: float | None) -> list[str]:
    """Families whose tables were not distilled."""
    kinds = {g.kind for g in model.groups}
    found = ["experts (as plain linear layers)"] if model.n_experts else []
    found += ["state layers (as plain linear layers)"] if "state" in kinds else []
    found += ["latent attention (as plain attention)"] if "mla" in kinds else []
    width = model.kv_dtype_bytes if kv_dtype_bytes is None else kv_dtype_bytes
    return found + (["a KV cache of 1 byte (16-bit attention, fewer bytes)"] if width < 2 else [])
