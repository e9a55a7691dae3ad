"""What a server inherits: nothing of ours, everything the user set for vLLM, and the same for every trial."""

from __future__ import annotations

from pathlib import Path

from optimizer.engines.vllm.environment import ServerEnvironment, server_environment

OURS = {
    "PATH": "/usr/bin",
    "HOME": "/h",
    "RAY_JOB_ID": "1",
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "VCO_RAY_DIRECTORY": "/tmp/x",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": "/code",
    "VIRTUAL_ENV": "/v",
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_ATTENTION_BACKEND": "FLASHINFER",
    "VLLM_ENABLE_STARTUP_PLAN": "1",
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_API_KEY": "sk-1234567890",
    "HF_TOKEN": "hf_abcdefghij",
    "LD_LIBRARY_PATH": "/cuda",
}


def made(inherited: dict[str, str] = OURS, **changes: object) -> ServerEnvironment:
    known: dict[str, object] = {"is_own_python": False, "is_cpu": False, "is_local_model": True, "inherited": inherited}
    return server_environment("/v/bin/python", **(known | changes))  # type: ignore[arg-type]


def test_nothing_of_ours_is_passed_on() -> None:
    found = made().variables
    assert not {n for n in found if n.startswith(("RAY_", "VCO_"))}
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS"} & set(found)
    assert found["PATH"] == "/v/bin:/usr/bin" and found["HOME"] == "/h" and found["LD_LIBRARY_PATH"] == "/cuda"
    assert "PYTHONPATH" in made(is_own_python=True).variables


def test_the_users_own_thread_limit_stays() -> None:
    assert made({"OMP_NUM_THREADS": "8", "RAY_JOB_ID": "1"}).variables["OMP_NUM_THREADS"] == "8"
    assert made({"OMP_NUM_THREADS": "1"}).variables["OMP_NUM_THREADS"] == "1"


def test_variables_that_falsify_a_trial_are_left_out_and_said() -> None:
    environment = made()
    assert "VLLM_ENABLE_STARTUP_PLAN" not in environment.variables
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment.variables and "VLLM_API_KEY" not in environment.variables
    assert len(environment.notices) == 3 and "kv_cache_memory_bytes" in " ".join(environment.notices)
    assert "sk-1234567890" not in " ".join(environment.notices)
    assert environment.variables["VLLM_ATTENTION_BACKEND"] == "FLASHINFER"


def test_it_is_the_same_for_every_trial(tmp_path: Path) -> None:  # case TOOL-17
    """Every worker finds itself under another Ray, with other leftovers; the compile cache's key must not see it."""
    elsewhere = {**OURS, "RAY_JOB_ID": "2", "VCO_RAY_DIRECTORY": "/tmp/y"}
    first, second = made(cache_root=tmp_path), made(elsewhere, cache_root=tmp_path)
    assert first == second
    assert first.variables["VLLM_CACHE_ROOT"] == str(tmp_path) and first.variables["PYTHONHASHSEED"] == "0"
    assert first.variables["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))


def test_devices_are_passed_by_uuid() -> None:  # case RAY-01
    found = made(gpu_uuids=("GPU-1", "MIG-2")).variables
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-1,MIG-2" and found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_the_models_place_and_the_platform_decide() -> None:
    assert made().variables["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in made(is_local_model=False).variables
    assert made(is_cpu=True).variables["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in made().variables
    assert made(extra={"VLLM_CPU_OMP_THREADS_BIND": "0-3"}, is_cpu=True).variables["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"


def test_what_is_recorded_holds_no_secret() -> None:
    recorded = made({**OURS, "VLLM_S3_SECRET_KEY": "abc", "VLLM_PROXY": "http://me:word@host"}).recorded()
    assert recorded["VLLM_S3_SECRET_KEY"] == recorded["VLLM_PROXY"] == "***"
    assert recorded["VLLM_ATTENTION_BACKEND"] == "FLASHINFER" and "HF_TOKEN" not in recorded
