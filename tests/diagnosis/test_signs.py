"""Single lines that tell a failure, alone and while a model loads."""

from __future__ import annotations

import pytest

from optimizer.diagnosis.failure import Verdict, judge

BOOT = """\
(APIServer pid=1) INFO 11-29 10:00:00 [utils.py:2] non-default args: {'model': 'm'}
(EngineCore pid=6) INFO 11-29 10:00:02 [core.py:1] Initializing a V1 LLM engine (v0.11.0)
(EngineCore pid=6) INFO 11-29 10:00:03 [gpu_model_runner.py:1] Starting to load model m...
"""
ERROR = "(EngineCore pid=6) ERROR 11-29 10:00:10 [core.py:1108] "


def judged(text: str) -> Verdict:
    verdict = judge(text)
    assert verdict is not None
    return verdict


DEVICE_MEMORY = [
    "RuntimeError: Triton Error [CUDA]: out of memory",
    "RuntimeError: Triton Error [HIP]: out of memory",
    "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity; 1.00 GiB free)",
    "host:12:34 [0] NCCL WARN Cuda failure 'out of memory'",
    "host:12:34 [0] enqueue.cc:1 NCCL WARN Cuda failure 2 'out of memory'",
    "CUDA Error: out of memory at /x/cumem_allocator.cpp:62",
    "RuntimeError: CUDA driver error: out of memory",
]


@pytest.mark.parametrize("line", DEVICE_MEMORY)
def test_device_memory_by_any_name(line: str) -> None:
    alone, loading = judged(line), judged(BOOT + line)
    assert (alone.kind, alone.phase, alone.config_fault) == ("runtime_peak", None, True)
    assert (loading.kind, loading.phase, loading.config_fault) == ("weights", "load", True)


def test_device_memory_under_a_communication_error() -> None:
    log = "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error\nLast error:\n"
    assert judged(log + "Cuda failure 2 'out of memory'").kind == "runtime_peak"


def test_flashinfers_workspace() -> None:
    verdict = judged(
        "RuntimeError: Error in function 'aligned_alloc' at /x/allocator.h:49: Failed to allocate memory for "
        "batch_prefill_tmp_v with size 352321536 and alignment 16 in AlignedAllocator"
    )
    assert (verdict.kind, verdict.config_fault) == ("runtime_peak", True)
    assert "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE" in verdict.advice[0]


@pytest.mark.parametrize("head", ["", ERROR])
def test_on_chip_memory_is_a_kernels_and_no_utilization_helps(head: str) -> None:
    verdict = judged(
        f"{head}triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, "
        "Hardware limit: 101376. Reducing block sizes or `num_stages` may help."
    )
    assert (verdict.kind, verdict.config_fault) == ("arguments", True)
    assert "attention_backend" in verdict.advice[0] and "gpu_memory_utilization" not in " ".join(verdict.advice)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x", "model_missing"),
        ("HTTPError: 503 Server Error: Service Unavailable for url: https://huggingface.co/x", "model_missing"),
        ("host:1:2 [1] NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-a (size 9)", "host_ram"),
        ("bash: vllm: command not found", "version"),
        ("bash: line 1: vllm: command not found", "version"),
        ("sh: 1: vllm: not found", "version"),
        ("zsh: command not found: vllm", "version"),
        ("/usr/bin/python3: No module named vllm", "version"),
        ("ModuleNotFoundError: No module named 'vllm'", "version"),
        ("ModuleNotFoundError: No module named 'vllm._C'", "version"),
    ],
)
def test_what_no_configuration_causes(line: str, kind: str) -> None:
    verdict = judged(line)
    assert (verdict.kind, verdict.config_fault) == (kind, False) and verdict.advice


def test_what_is_not_installed_is_said_so() -> None:
    assert "vLLM is not installed" in judged("bash: vllm: command not found").cause
    assert "vLLM is not installed" not in judged("ModuleNotFoundError: No module named 'vllm._C'").cause
    assert judge("start.sh: line 3: nvidia-smi: command not found") is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error", "NCCL_DEBUG"),
        ("[ 12.3] NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.", "dmesg"),
        ("OSError: [Errno 28] No space left on device", "free space"),
        ("OSError: [Errno 24] Too many open files: 'x'", "ulimit"),
        ("RuntimeError: No CUDA GPUs are available", "CUDA_VISIBLE_DEVICES"),
        ("KeyError: 'layers.0.mlp.w13'", "log"),
    ],
)
def test_the_unknown_gets_advice_too(line: str, words: str) -> None:
    verdict = judged(line)
    assert verdict.kind == "unknown" and words in verdict.advice[0]


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity of 79.19 GiB "
    "of which 21.75 MiB is free. Process 999 has {} memory in use. Including non-PyTorch memory, this process has {} "
    "GiB memory in use."
)


@pytest.mark.parametrize(
    ("others", "own", "kind"),
    [("20.00 GiB", 59.1, "neighbour"), ("1.50 GiB", 77.6, "neighbour"), ("520.00 MiB", 78.6, "weights")],
)
def test_another_process_on_the_card_at_an_unknown_utilization(others: str, own: float, kind: str) -> None:
    verdict = judged(BOOT + ERROR + OOM.format(others, own))
    assert (verdict.kind, verdict.config_fault) == (kind, kind == "weights")


def test_the_servers_own_processes_are_no_neighbours() -> None:
    log = BOOT.replace("pid=6", "pid=999") + ERROR + OOM.format("20.00 GiB", 59.1)
    assert judged(log).kind == "weights"
