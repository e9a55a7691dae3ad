"""Quantisation on load: `--quantization` on a checkpoint that is not quantised changes what its weights weigh."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.model import ModelFacts

ON_LOAD_BYTES = {"fp8": 1.0, "ptpc_fp8": 1.0, "fbgemm_fp8": 1.0, "mxfp8": 1 + 1 / 32, "bitsandbytes": 0.5 + 4 / 64}
"""`--quantization` methods that vLLM 0.32 applies while it loads 16-bit weights -> bytes a linear parameter."""


def quantized_on_load(model: ModelFacts, method: str | None) -> ModelFacts:
    """The facts of the model as vLLM holds it. A checkpoint that is quantised already, or no method, changes nothing.

    Raises ValueError for a method that needs a checkpoint of its own, or is not known."""
    if method is None or model.is_quantized:
        return model
    if method not in ON_LOAD_BYTES:
        known = ", ".join(sorted(ON_LOAD_BYTES))
        raise ValueError(
            f"quantization {method!r} does not quantise a 16-bit checkpoint while loading (these do: {known});"
            " give the quantised checkpoint as the model"
        )
    note = f"weights quantised to {method} while loading"
    return replace(
        model,
        weight_bytes_per_parameter=ON_LOAD_BYTES[method],
        is_quantized=True,
        measured_weight_bytes=None,
        notes=(*model.notes, note),
    )
