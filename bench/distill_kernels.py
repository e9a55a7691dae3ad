"""Distil kernel efficiencies from published kernel measurements into search_spaces/kernel_table.py.

    python -m bench.distill_kernels aiconfigurator_core-0.12.0-*.whl > search_spaces/kernel_table.py

The wheel (or the folder it unpacks to) is NVIDIA AIConfigurator's, Apache-2.0; its kernel tables are read, never its
serving rows. The RTX 4090 comes from bench/data/kernels_rtx4090.csv (LLMServingSim, MIT). Needs pyarrow and scipy in an
environment of its own; nothing is fetched, and nothing of this runs when the package does.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.cli import run_main
from optimizer.errors import UserError
from search_spaces.hardware import GpuFacts, find_gpu

Column = NDArray[np.float64]
SYSTEMS = {
    "H100-80": "h100_sxm",
    "H200-141": "h200_sxm",
    "A100-80": "a100_sxm",
    "L40S-48": "l40s",
    "B200-180": "b200_sxm",
    "RTX-PRO-6000-96": "rtx_pro_6000_server",
}
RTX_4090 = Path(__file__).parent / "data" / "kernels_rtx4090.csv"
MOST_TOKENS = 16384
ALL_REDUCE_AT = tuple(2**n for n in (12, 16, 18, 20, 21, 22, 23, 25, 27))
"""Elements of a message that become points; the others check them."""
HEADER = f'''"""Kernel efficiencies, written by bench/distill_kernels.py, not by hand; NOTICE names who measured."""

from __future__ import annotations

from search_spaces.kernels import AllReduce, DecodeAttention, Gemm, Kernels, MixedPenalty, PrefillAttention

_MESSAGE_BYTES = {tuple(2 * n for n in ALL_REDUCE_AT)}


def _all_reduce(n_gpus: int, times_s: tuple[float, ...], source: str, error: float) -> AllReduce:
    return AllReduce(n_gpus=n_gpus, points=tuple(zip(_MESSAGE_BYTES, times_s, strict=True)), source=source, error=error)


'''


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="the wheel of aiconfigurator-core 0.12.0, or its folder")
    source = parser.parse_args(argv).source
    tables = Tables(source)
    print(HEADER, end="")
    print("FITTED: dict[str, Kernels] = {")
    for name, system in SYSTEMS.items():
        print(f'    "{name}": {_card(tables, find_gpu(name), system)},')
    print(f'    "RTX-4090-24": {_rtx_4090(find_gpu("RTX-4090-24"))},')
    print("}")
    return 0


class Tables:
    """The Parquet files of one wheel or folder."""

    def __init__(self, source: Path) -> None:
        if not source.exists():
            raise UserError(f"{source}: no such file; pip download --no-deps aiconfigurator-core==0.12.0")
        self._source = source
        self._names = sorted(self._all())

    def _all(self) -> Iterator[str]:
        if self._source.is_dir():
            yield from (str(p.relative_to(self._source)) for p in self._source.rglob("*.parquet"))
        else:
            with zipfile.ZipFile(self._source) as wheel:
                yield from (n for n in wheel.namelist() if n.endswith(".parquet"))

    def read(self, system: str, table: str) -> tuple[dict[str, Any], str]:
        """(columns, version of vLLM they were measured on), the newest there is."""
        found = [
            n for n in self._names if f"/data/{system}/" in n and "/vllm/" in n and n.endswith(f"/{table}.parquet")
        ]
        if not found:
            raise UserError(f"{self._source}: no {table} for {system}; give the wheel of aiconfigurator-core 0.12.0")
        newest = max(found, key=lambda n: tuple(int(p) for p in n.split("/")[-2].split(".")))
        return _parquet(self._bytes(newest)), newest.split("/")[-2]

    def _bytes(self, name: str) -> bytes:
        if self._source.is_dir():
            return (self._source / name).read_bytes()
        with zipfile.ZipFile(self._source) as wheel:
            return wheel.read(name)


def _parquet(raw: bytes) -> dict[str, Any]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("reading Parquet needs pyarrow and scipy; install both in an environment of its own") from error
    return {k: np.array(v) for k, v in pyarrow.parquet.read_table(io.BytesIO(raw)).to_pydict().items()}


# ---- one card -------------------------------------------------------------------------------------------------------


def _card(tables: Tables, gpu: GpuFacts, system: str) -> str:
    rows, version = tables.read(system, "gemm_perf")
    parts = [_gemm("gemm", rows, "bfloat16", gpu.bf16_flops, 2, gpu, version)]
    if gpu.fp8_flops is not None and np.any(rows["gemm_dtype"] == "fp8"):
        parts.append(_gemm("gemm_fp8", rows, "fp8", gpu.fp8_flops, 1, gpu, version))
    parts.append(_prefill(*tables.read(system, "context_attention_perf"), gpu))
    parts.append(_decode(*tables.read(system, "generation_attention_perf"), gpu))
    parts.append(_penalty(gpu))
    parts.append(_all_reduce(*tables.read(system, "custom_allreduce_perf")))
    return "Kernels(\n        " + ",\n        ".join(parts) + ",\n    )"


def _source(version: str) -> str:
    return f"NVIDIA AIConfigurator 0.12.0, kernels of vLLM {version} (Apache-2.0)"


def _entry(name: str, kind: str, source: str, error: float | None, **values: float) -> str:
    told = ", ".join(f"{k}={v:.4g}" for k, v in values.items())
    shown = "None" if error is None else f"{error:.3f}"
    return f'{name}={kind}(\n            {told}, source="{source}", error={shown}\n        )'


def _gemm(name: str, rows: dict[str, Any], dtype: str, peak: float, width: int, gpu: GpuFacts, version: str) -> str:
    m, n, k = (rows[c].astype(float) for c in "mnk")
    keep = (rows["gemm_dtype"] == dtype) & (m <= MOST_TOKENS) & (n >= 512) & (k >= 512) & (n <= 65536) & (k <= 32768)
    return _fit_gemm(name, m[keep], n[keep], k[keep], rows["latency"][keep] * 1e-3, peak, width, gpu, _source(version))


def _fit_gemm(
    name: str, m: Column, n: Column, k: Column, t: Column, peak: float, width: int, gpu: GpuFacts, source: str
) -> str:
    compute = 2 * m * n * k / peak
    memory = (width * n * k + width * m * k + 2 * m * n) / gpu.hbm_bytes_per_s

    def predicted(x: Column) -> Column:
        mfu, mbu, t0, q = x
        q = max(q, 0.7)
        return np.asarray(abs(t0) * 1e-6 + ((compute / mfu) ** q + (memory / mbu) ** q) ** (1 / q))

    (mfu, mbu, t0, q), error = _fit(predicted, t, (0.8, 0.85, 3.0, 2.5))
    return _entry(name, "Gemm", source, error, mfu=mfu, mbu=mbu, q=max(q, 0.7), t0_s=abs(t0) * 1e-6)


def _prefill(rows: dict[str, Any], version: str, gpu: GpuFacts) -> str:
    batch, tokens, heads = (rows[c].astype(float) for c in ("batch_size", "isl", "num_heads"))
    keep = _like_a_model(rows) & (batch * tokens <= 2 * MOST_TOKENS) & (heads >= 4)
    compute = 4 * heads * 128 * batch * tokens**2 / 2 / gpu.bf16_flops
    traffic = batch * tokens * 128 * 4 * (heads + rows["num_key_value_heads"]) / gpu.hbm_bytes_per_s
    return _fit_prefill(compute[keep], traffic[keep], rows["latency"][keep] * 1e-3, _source(version))


def _fit_prefill(compute: Column, traffic: Column, t: Column, source: str) -> str:
    def predicted(x: Column) -> Column:
        return np.asarray(abs(x[1]) * 1e-6 + compute / x[0] + abs(x[2]) * traffic)

    (mfu, t0, passes), error = _fit(predicted, t, (0.6, 10.0, 2.0))
    values = {"mfu": mfu, "t0_s": abs(t0) * 1e-6, "n_passes": abs(passes)}
    return _entry("prefill", "PrefillAttention", source, error, **values)


def _decode(rows: dict[str, Any], version: str, gpu: GpuFacts) -> str:
    batch, step, heads = (rows[c].astype(float) for c in ("batch_size", "step", "num_key_value_heads"))
    keep = _like_a_model(rows) & (batch <= 512) & (step >= 127)
    return _fit_decode(batch[keep], step[keep] + 1, heads[keep], rows["latency"][keep] * 1e-3, gpu, _source(version))


def _fit_decode(batch: Column, context: Column, heads: Column, t: Column, gpu: GpuFacts, source: str) -> str:
    memory = batch * context * heads * 128 * 2 * 2 / gpu.hbm_bytes_per_s

    def predicted(x: Column) -> Column:
        return np.asarray(abs(x[1]) * 1e-6 + memory / x[0] + batch * heads * abs(x[2]) * 1e-9)

    (mbu, t0, head), error = _fit(predicted, t, (0.9, 10.0, 15.0))
    values = {"mbu": mbu, "t0_s": abs(t0) * 1e-6, "sequence_head_s": abs(head) * 1e-9}
    return _entry("decode", "DecodeAttention", source, error, **values)


def _like_a_model(rows: dict[str, Any]) -> Any:
    """Heads of 128, 16-bit cache, no window, at most 16 query heads to a KV head."""
    groups = rows["num_heads"] / np.maximum(rows["num_key_value_heads"], 1)
    is_16_bit = rows["kv_cache_dtype"] == "bfloat16"
    window = np.array([w or 0 for w in rows.get("window_size", np.zeros(len(groups)))])
    return is_16_bit & (rows["head_dim"] == 128) & (window == 0) & (groups <= 16) & (rows["num_heads"] <= 64)


def _penalty(gpu: GpuFacts) -> str:
    """Nothing in these tables mixes prefill with decode. FlashAttention 3 has one schedule for both; cards that run
    FlashAttention 2 take the RTX 4090's measured factor, the PRO 6000 the one of its LLMServingSim profile."""
    if gpu.name == "RTX-PRO-6000-96":
        source = "LLMServingSim profile of an RTX PRO 6000, 64 x 1024 beside 512 tokens: 349 against 221 us (MIT)"
        return _entry("mixed", "MixedPenalty", source, 0.0, factor=1.58)
    if gpu.name in ("A100-80", "L40S-48"):
        return _entry("mixed", "MixedPenalty", "FlashAttention 2 as on the RTX 4090", None, factor=1.8)
    return _entry("mixed", "MixedPenalty", "one kernel schedules both: no penalty assumed", None, factor=1.0)


def _all_reduce(rows: dict[str, Any], version: str) -> str:
    """Message sizes in the table are elements of two bytes."""
    in_graph = np.char.find(rows["backend"].astype(str), "graph") >= 0
    told = []
    for n_gpus in sorted({int(n) for n in rows["num_gpus"]}):
        keep = in_graph & (rows["num_gpus"] == n_gpus)
        order = np.argsort(rows["message_size"][keep])
        size, t = rows["message_size"][keep][order].astype(float), rows["latency"][keep][order] * 1e-3
        chosen = np.isin(size, ALL_REDUCE_AT)
        line = np.exp(np.interp(np.log(size), np.log(size[chosen]), np.log(t[chosen])))
        error = float(np.median(np.abs(line / t - 1)[~chosen]))
        if tuple(size[chosen]) != ALL_REDUCE_AT:
            raise UserError(f"all-reduce of {n_gpus} GPUs: not every size of {ALL_REDUCE_AT} was measured")
        times_s = ", ".join(f"{v:.3g}" for v in t[chosen])
        told.append(f'_all_reduce({n_gpus}, ({times_s}), "{_source(version)}", {error:.3f})')
    return "all_reduce=(\n            " + ",\n            ".join(told) + ",\n        )"


def _rtx_4090(gpu: GpuFacts) -> str:
    with RTX_4090.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    source = "LLMServingSim profile of an RTX 4090, Llama-3.1-8B, vLLM 0.19 (MIT)"
    m, n, k, t = _columns(rows, "gemm")
    gemm = _fit_gemm("gemm", m, n, k, t, gpu.bf16_flops, 2, gpu, source)
    batch, context, heads, t = _columns(rows, "decode")
    decode = _fit_decode(batch, context, heads, t, gpu, source)
    alone = dict(zip(zip(batch, context, strict=True), t, strict=True))
    mixed_batch, mixed_context, _, mixed_t = _columns(rows, "mixed")
    pairs = zip(mixed_batch, mixed_context, mixed_t, strict=True)
    factors = np.array([v / alone[b, c] for b, c, v in pairs])
    factor = float(np.median(factors))
    error = float(np.median(np.abs(factor / factors - 1)))
    chunk, prior, heads, t = _columns(rows, "prefill")
    compute = 4 * heads * 128 * chunk * (prior + chunk / 2) / gpu.bf16_flops
    traffic = chunk * 128 * 4 * (heads + 8) / gpu.hbm_bytes_per_s
    parts = [
        gemm,
        _fit_prefill(compute, traffic, t, source),
        decode,
        _entry("mixed", "MixedPenalty", source, error, factor=factor),
    ]
    return "Kernels(\n        " + ",\n        ".join(parts) + ",\n    )"


def _columns(rows: list[dict[str, str]], kind: str) -> tuple[Column, Column, Column, Column]:
    names = ("tokens_or_sequences", "size_a", "size_b", "time_us")
    a, b, c, t = (np.array([float(r[n]) for r in rows if r["kind"] == kind]) for n in names)
    return a, b, c, t * 1e-6


def _fit(predicted: Callable[[Column], Column], t: Column, start: tuple[float, ...]) -> tuple[Column, float]:
    """Least mean |log(predicted / measured)|: (coefficients, median relative error)."""
    from scipy.optimize import minimize

    def loss(x: Column) -> float:
        return 9.0 if np.any(x[:1] <= 0) else float(np.mean(np.abs(np.log(predicted(x) / t))))

    best = minimize(loss, np.array(start), method="Nelder-Mead", options={"maxiter": 1500, "xatol": 1e-4}).x
    return best, float(np.median(np.abs(predicted(best) / t - 1)))


if __name__ == "__main__":
    sys.exit(run_main(main))
