"""One booted server: what its start recorded, what it is asked for, and how it is ended."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from optimizer.engines.vllm import http
from optimizer.engines.vllm.ports import lease_ports
from optimizer.engines.vllm.registry import STAMP
from optimizer.processes import is_alive, shared_memory_of
from tests.real_engine.conftest import Served

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]


def complete(url: str, model: str, **more: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": list(range(10, 110)), "max_tokens": 8, "ignore_eos": True, **more}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def environment_of(pid: int) -> dict[str, str]:
    return psutil.Process(pid).environ()


def test_what_a_start_records(served: Served, tiny_model: Path) -> None:  # cases VER-01, VER-03, TOOL-17
    boot = served.boot
    assert (boot.kv_tokens, boot.kv_blocks) == (32_768, 1024)
    assert boot.versions["vllm"].startswith("0.32.0") and boot.versions["torch"] and boot.versions["python"]
    assert boot.server_info["scheduler_config"]["max_num_seqs"] == 16
    assert boot.server_info["scheduler_config"]["watermark"] == 0.0, "what was not asked for is recorded too"
    assert set(boot.seconds) >= {"config", "load", "kv_alloc", "serving"}
    assert 3 < sum(boot.seconds.values()) < 300 and boot.seconds["config"] > 1
    assert any("holds no weights" in w for w in boot.warnings)
    assert "vllm" in boot.arguments[0] and boot.arguments[1] == "serve" and str(tiny_model) in boot.arguments
    assert json.loads(json.dumps(boot.facts()))["kv_tokens"] == 32_768


def test_the_servers_environment(served: Served) -> None:
    api_server, *_ = served.server.pids
    found = environment_of(api_server)
    assert not [n for n in found if n.startswith("RAY_") or (n.startswith("VCO_") and n != STAMP)]
    assert found["HF_HUB_OFFLINE"] == found["VLLM_NO_USAGE_STATS"] == found["VLLM_SERVER_DEV_MODE"] == "1"
    assert found["PYTHONHASHSEED"] == "0" and found["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "VLLM_CPU_KVCACHE_SPACE" not in found and Path(found["TMPDIR"]).is_dir()


def test_its_processes_are_known(served: Served) -> None:
    pids = served.server.pids
    names = [psutil.Process(pid).name() for pid in pids]
    assert served.server.is_alive and served.server.exit_code is None
    assert any("EngineCor" in name for name in names) and any("Worker" in name for name in names)
    assert "EngineCore" in served.server.states() or "EngineCor" in served.server.states()
    assert shared_memory_of(psutil.Process(pid) for pid in pids)


def test_it_listens_on_its_lease_and_on_this_machine_only(served: Served) -> None:  # case MULTI-06
    listening = psutil.Process(served.server.pids[0]).net_connections("tcp")
    addresses = {c.laddr for c in listening if c.status == psutil.CONN_LISTEN}
    assert [a.ip for a in addresses] == ["127.0.0.1"]
    lease = lease_ports()
    try:
        assert {lease.api, *range(lease.internal, lease.internal + 25)}.isdisjoint(a.port for a in addresses)
    finally:
        lease.release()


def test_what_it_answers(served: Served) -> None:
    url = served.url
    assert http.health(url) and http.version(url) == "0.32.0"
    assert http.served_models(url) == (served.server.served_model,)
    assert http.reset_prefix_cache(url) is True
    assert http.n_running_and_waiting(url) == (0.0, 0.0)
    assert http.cache_config(url)["kv_tokens"] == "32768"
    first, second = (complete(url, served.server.served_model) for _ in range(2))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 96, "three blocks of 32"
    assert first["usage"]["completion_tokens"] == 8
    assert http.reset_prefix_cache(url) is True
    third = complete(url, served.server.served_model)
    assert not (third["usage"]["prompt_tokens_details"] or {}).get("cached_tokens")


def test_what_cannot_be_read_is_none(served: Served) -> None:
    nobody = "http://127.0.0.1:9"
    assert not http.health(nobody) and http.version(nobody) is None and http.served_models(nobody) == ()
    assert http.server_info(nobody) is None and http.reset_prefix_cache(nobody) is None
    assert http.n_running_and_waiting(nobody) is None and http.cache_config(nobody) == {}
    assert http.version(f"{served.url}/v1") == "0.32.0", "an address as clients write it"


def test_nothing_of_it_stays(served: Served) -> None:
    """The module's last test: it ends the server."""
    server = served.server
    tree = [psutil.Process(pid) for pid in server.pids]
    shared = shared_memory_of(tree)
    scratch = Path(environment_of(server.pids[0])["TMPDIR"])
    assert list(scratch.iterdir()), "its sockets lie there"
    server.stop()
    assert not any(map(is_alive, tree)) and server.pids == () and not server.is_alive
    assert not any(path.exists() for path in shared) and not scratch.exists()
    assert "Application startup complete" in server.log_text()
    assert [p.name for p in server.log_path.parent.iterdir()] == ["server.log"]
    lease = lease_ports()
    lease.release()
    server.stop()
