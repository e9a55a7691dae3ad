"""Kernel efficiencies, written by bench/distill_kernels.py, not by hand; NOTICE names who measured."""

from __future__ import annotations

from search_spaces.kernels import AllReduce, DecodeAttention, Gemm, Kernels, MixedPenalty, PrefillAttention

_MESSAGE_BYTES = (8192, 131072, 524288, 2097152, 4194304, 8388608, 16777216, 67108864, 268435456)


def _all_reduce(n_gpus: int, times_s: tuple[float, ...], source: str, error: float) -> AllReduce:
    return AllReduce(n_gpus=n_gpus, points=tuple(zip(_MESSAGE_BYTES, times_s, strict=True)), source=source, error=error)


FITTED: dict[str, Kernels] = {
    "H100-80": Kernels(
        gemm=Gemm(
            mfu=0.8108,
            mbu=0.8718,
            q=2.644,
            t0_s=3.439e-06,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.064,
        ),
        gemm_fp8=Gemm(
            mfu=0.5284,
            mbu=0.9333,
            q=0.9837,
            t0_s=6.945e-06,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.163,
        ),
        prefill=PrefillAttention(
            mfu=0.7053,
            t0_s=1.285e-05,
            n_passes=2.597,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.063,
        ),
        decode=DecodeAttention(
            mbu=0.9143,
            t0_s=1.238e-05,
            sequence_head_s=1.321e-08,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.057,
        ),
        mixed=MixedPenalty(factor=1, source="one kernel schedules both: no penalty assumed", error=None),
        all_reduce=(
            _all_reduce(
                2,
                (4.38e-06, 4.75e-06, 6.32e-06, 1.24e-05, 2.02e-05, 4.5e-05, 8.14e-05, 0.000307, 0.000885),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
                0.035,
            ),
            _all_reduce(
                4,
                (4.81e-06, 5.8e-06, 1.14e-05, 1.86e-05, 3.02e-05, 5.35e-05, 9.88e-05, 0.00033, 0.00118),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
                0.058,
            ),
            _all_reduce(
                8,
                (5.11e-06, 7.86e-06, 1.2e-05, 1.94e-05, 3.08e-05, 5.07e-05, 9.24e-05, 0.000344, 0.00109),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
                0.096,
            ),
        ),
    ),
    "H200-141": Kernels(
        gemm=Gemm(
            mfu=0.8048,
            mbu=0.8218,
            q=3.034,
            t0_s=3.702e-06,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.067,
        ),
        gemm_fp8=Gemm(
            mfu=0.6359,
            mbu=0.9857,
            q=0.7353,
            t0_s=7.228e-06,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.190,
        ),
        prefill=PrefillAttention(
            mfu=0.6963,
            t0_s=1.281e-05,
            n_passes=3.445,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.065,
        ),
        decode=DecodeAttention(
            mbu=0.8903,
            t0_s=1.277e-05,
            sequence_head_s=1.62e-08,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.054,
        ),
        mixed=MixedPenalty(factor=1, source="one kernel schedules both: no penalty assumed", error=None),
        all_reduce=(
            _all_reduce(
                2,
                (4.64e-06, 4.82e-06, 6.34e-06, 1.24e-05, 2.05e-05, 4.3e-05, 7.66e-05, 0.000281, 0.000887),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
                0.052,
            ),
            _all_reduce(
                4,
                (4.77e-06, 5.81e-06, 1.05e-05, 1.78e-05, 2.98e-05, 5.18e-05, 9.38e-05, 0.00032, 0.00118),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
                0.063,
            ),
            _all_reduce(
                8,
                (5.14e-06, 7.94e-06, 1.11e-05, 1.81e-05, 2.84e-05, 4.84e-05, 8.72e-05, 0.000323, 0.00105),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
                0.081,
            ),
        ),
    ),
    "A100-80": Kernels(
        gemm=Gemm(
            mfu=0.8397,
            mbu=0.7537,
            q=1.605,
            t0_s=5.546e-06,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.14.0 (Apache-2.0)",
            error=0.070,
        ),
        prefill=PrefillAttention(
            mfu=0.5901,
            t0_s=1.22e-05,
            n_passes=2.894,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.14.0 (Apache-2.0)",
            error=0.109,
        ),
        decode=DecodeAttention(
            mbu=0.7079,
            t0_s=1.915e-05,
            sequence_head_s=9.743e-10,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.14.0 (Apache-2.0)",
            error=0.081,
        ),
        mixed=MixedPenalty(factor=1.8, source="FlashAttention 2 as on the RTX 4090", error=None),
        all_reduce=(
            _all_reduce(
                2,
                (5.29e-06, 5.74e-06, 7.99e-06, 1.52e-05, 2.52e-05, 8.97e-05, 0.000126, 0.000388, 0.00143),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.14.0 (Apache-2.0)",
                0.054,
            ),
            _all_reduce(
                4,
                (5.53e-06, 7.78e-06, 1.45e-05, 2.6e-05, 4.15e-05, 0.000118, 0.000182, 0.00054, 0.00192),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.14.0 (Apache-2.0)",
                0.071,
            ),
            _all_reduce(
                8,
                (6.32e-06, 1.14e-05, 1.89e-05, 2.79e-05, 4.54e-05, 0.000129, 0.000214, 0.000594, 0.00217),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.14.0 (Apache-2.0)",
                0.122,
            ),
        ),
    ),
    "L40S-48": Kernels(
        gemm=Gemm(
            mfu=0.6315,
            mbu=0.8028,
            q=2.286,
            t0_s=1.135e-06,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.089,
        ),
        gemm_fp8=Gemm(
            mfu=0.6233,
            mbu=0.8332,
            q=0.8644,
            t0_s=4.668e-06,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.157,
        ),
        prefill=PrefillAttention(
            mfu=0.5485,
            t0_s=7.888e-06,
            n_passes=1.009,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.120,
        ),
        decode=DecodeAttention(
            mbu=0.8489,
            t0_s=9.738e-06,
            sequence_head_s=6.211e-16,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.149,
        ),
        mixed=MixedPenalty(factor=1.8, source="FlashAttention 2 as on the RTX 4090", error=None),
        all_reduce=(
            _all_reduce(
                2,
                (5.72e-06, 1.1e-05, 3.21e-05, 0.000117, 0.000229, 0.00045, 0.000892, 0.00354, 0.0141),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.22.0 (Apache-2.0)",
                0.065,
            ),
            _all_reduce(
                4,
                (1.43e-05, 5.96e-05, 0.000219, 0.000841, 0.00165, 0.00332, 0.00668, 0.0272, 0.108),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.22.0 (Apache-2.0)",
                0.069,
            ),
            _all_reduce(
                8,
                (2.76e-05, 0.000108, 0.000445, 0.00208, 0.00401, 0.00817, 0.0158, 0.0601, 0.24),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.22.0 (Apache-2.0)",
                0.081,
            ),
        ),
    ),
    "B200-180": Kernels(
        gemm=Gemm(
            mfu=0.7121,
            mbu=0.7964,
            q=2.746,
            t0_s=3.235e-06,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.075,
        ),
        gemm_fp8=Gemm(
            mfu=0.49,
            mbu=0.9241,
            q=0.9114,
            t0_s=7.386e-06,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.211,
        ),
        prefill=PrefillAttention(
            mfu=0.6054,
            t0_s=1.156e-05,
            n_passes=4.28,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.112,
        ),
        decode=DecodeAttention(
            mbu=0.9123,
            t0_s=9.017e-06,
            sequence_head_s=1.78e-09,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.055,
        ),
        mixed=MixedPenalty(factor=1, source="one kernel schedules both: no penalty assumed", error=None),
        all_reduce=(
            _all_reduce(
                2,
                (6.99e-06, 7.4e-06, 9.44e-06, 2.53e-05, 3.37e-05, 5.06e-05, 5.74e-05, 0.000155, 0.000529),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
                0.046,
            ),
            _all_reduce(
                4,
                (7.13e-06, 8.06e-06, 1.8e-05, 2.38e-05, 3e-05, 4.32e-05, 6.8e-05, 0.000187, 0.000681),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
                0.046,
            ),
            _all_reduce(
                8,
                (7.82e-06, 9.36e-06, 2.61e-05, 2.07e-05, 2.63e-05, 3.92e-05, 6.32e-05, 0.000223, 0.000715),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
                0.060,
            ),
        ),
    ),
    "RTX-PRO-6000-96": Kernels(
        gemm=Gemm(
            mfu=0.8604,
            mbu=0.8567,
            q=1.581,
            t0_s=2.559e-06,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.062,
        ),
        gemm_fp8=Gemm(
            mfu=0.829,
            mbu=0.8861,
            q=1.193,
            t0_s=5.9e-06,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.118,
        ),
        prefill=PrefillAttention(
            mfu=0.6394,
            t0_s=8.703e-06,
            n_passes=1.493,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.092,
        ),
        decode=DecodeAttention(
            mbu=0.85,
            t0_s=1.224e-05,
            sequence_head_s=2.97e-16,
            source="NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
            error=0.131,
        ),
        mixed=MixedPenalty(
            factor=1.58,
            source="LLMServingSim profile of an RTX PRO 6000, 64 x 1024 beside 512 tokens: 349 against 221 us (MIT)",
            error=0.000,
        ),
        all_reduce=(
            _all_reduce(
                2,
                (4.55e-06, 8.18e-06, 1.76e-05, 5.57e-05, 0.000106, 0.000245, 0.000475, 0.00184, 0.0071),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
                0.085,
            ),
            _all_reduce(
                4,
                (1.37e-05, 2.5e-05, 7.65e-05, 0.000146, 0.000247, 0.000462, 0.000887, 0.00356, 0.0136),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
                0.084,
            ),
            _all_reduce(
                8,
                (2.66e-05, 4.94e-05, 0.000156, 0.000223, 0.000347, 0.000675, 0.00127, 0.00507, 0.0198),
                "NVIDIA AIConfigurator 0.12.0, kernels of vLLM 0.24.0 (Apache-2.0)",
                0.100,
            ),
        ),
    ),
    "RTX-4090-24": Kernels(
        gemm=Gemm(
            mfu=1.001,
            mbu=0.8939,
            q=2.78,
            t0_s=8.731e-07,
            source="LLMServingSim profile of an RTX 4090, Llama-3.1-8B, vLLM 0.19 (MIT)",
            error=0.026,
        ),
        prefill=PrefillAttention(
            mfu=0.855,
            t0_s=8.942e-06,
            n_passes=1.812,
            source="LLMServingSim profile of an RTX 4090, Llama-3.1-8B, vLLM 0.19 (MIT)",
            error=0.004,
        ),
        decode=DecodeAttention(
            mbu=0.8904,
            t0_s=1.307e-05,
            sequence_head_s=5.028e-08,
            source="LLMServingSim profile of an RTX 4090, Llama-3.1-8B, vLLM 0.19 (MIT)",
            error=0.045,
        ),
        mixed=MixedPenalty(
            factor=1.694, source="LLMServingSim profile of an RTX 4090, Llama-3.1-8B, vLLM 0.19 (MIT)", error=0.052
        ),
    ),
}
