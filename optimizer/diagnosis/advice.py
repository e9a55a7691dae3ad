"""What to change, in the order to try it. Never a change that cannot help: a card that the weights alone overfill is
not helped by a lower gpu_memory_utilization, though vLLM 0.32 says so (v1/worker/gpu_model_runner.py:5142)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from optimizer.deployment.vllm_flags import FLAGS
from optimizer.diagnosis.bounds import utilization_of
from optimizer.diagnosis.circumstances import Circumstances
from optimizer.diagnosis.scan import Finding
from optimizer.diagnosis.vllm_log import GIB, LogFacts
from search_spaces.fit import MOST_UTILIZATION


@dataclass(frozen=True)
class Situation:
    """All that advice may rest on."""

    phase: str | None
    bounds: Mapping[str, float]
    facts: LogFacts
    given: Circumstances
    root: Finding | None
    trigger: str

    @property
    def sign(self) -> str:
        return self.root.sign.name if self.root is not None and self.root.sign is not None else ""

    @property
    def utilization(self) -> float | None:
        return utilization_of(self.facts, self.given, self.root.groups if self.root is not None else {})

    def argument(self, name: str) -> object:
        for arguments in (self.given.arguments, self.facts.non_default_args):
            if arguments and arguments.get(name) is not None:
                return arguments[name]
        return None


def advise(
    kind: str,
    phase: str | None,
    bounds: Mapping[str, float],
    facts: LogFacts,
    given: Circumstances,
    root: Finding | None,
    trigger: str,
) -> tuple[str, ...]:
    situation = Situation(phase, bounds, facts, given, root, trigger)
    return tuple(ADVICE[kind](situation)) if kind in ADVICE else ()


def _weights(_: Situation) -> list[str]:
    return [
        "use a smaller or quantised checkpoint (quantization, or a checkpoint that is already quantised)",
        "spread the model over more GPUs: raise tensor_parallel_size, or pipeline_parallel_size",
        "move part of the weights to host memory with cpu_offload_gb, at a cost in every step",
        "skip every other configuration of this model, parallelism and quantisation on a card of this size or smaller",
    ]


def _kv_capacity(s: Situation) -> list[str]:
    if s.sign == "state_blocks":
        most = s.bounds["max_num_seqs_at_most"]
        return [
            f"set max_num_seqs to at most {most:.0f}; the bound moves with gpu_memory_utilization and max_model_len",
            "raise gpu_memory_utilization",
        ]
    return [x for x in (_model_len(s), _more_kv(s), _cheaper_kv(s)) if x]


def _model_len(s: Situation) -> str:
    """Shorter contexts, if the workload allows them."""
    most, needed = s.bounds.get("max_model_len_at_most"), s.given.workload_max_tokens
    if most is None:
        return "" if s.sign in ("no_kv", "auto_fit", "kv_ram") else "lower max_model_len"
    if needed is None:
        return f"set max_model_len to at most {most:.0f}, if the longest prompt + output of the workload allows it"
    if needed > most:
        return (
            f"infeasible for this workload: its longest request needs {needed} tokens and at most {most:.0f} fit; "
            "give it more KV cache, or a shorter workload"
        )
    return (
        f"set max_model_len between {needed} (the workload's longest request) and {most:.0f}: no request of this "
        "workload is affected"
    )


def _more_kv(s: Situation) -> str:
    if s.argument("num_gpu_blocks_override") is not None:
        return "raise num_gpu_blocks_override, or leave it out"
    if s.argument("kv_cache_memory_bytes") is not None or s.sign == "oom":
        if s.sign in ("oom", "kv_ram"):
            return "lower kv_cache_memory_bytes"
        return "raise kv_cache_memory_bytes" + _needed_kv(s)
    least, deficit = s.bounds.get("gpu_memory_utilization_at_least"), s.bounds.get("kv_deficit_bytes")
    if least is not None:
        return f"raise gpu_memory_utilization to at least {least:.3f}"
    if deficit is not None and "total_bytes" in s.bounds and s.utilization is not None:
        return f"no gpu_memory_utilization up to {MOST_UTILIZATION} is enough: {deficit / GIB:.2f} GiB are missing"
    if deficit is not None:
        return f"raise gpu_memory_utilization by more than {deficit / GIB:.2f} GiB / the card's memory in GiB"
    return "raise gpu_memory_utilization"


def _needed_kv(s: Situation) -> str:
    """vLLM prints GiB to two decimals; below that the bytes given, times the tokens asked for over those that fit."""
    if "needed_bytes" in s.bounds:
        return f" to at least {s.bounds['needed_bytes'] / GIB:.2f} GiB a GPU"
    given, fits = s.argument("kv_cache_memory_bytes"), s.bounds.get("max_model_len_at_most")
    asked = s.root.groups.get("max_model_len") if s.root is not None else None
    if isinstance(given, int) and fits and asked:
        return f" to about {given * float(asked) / fits / 2**20:.0f} MiB"
    return ""


def _cheaper_kv(s: Situation) -> str:
    if s.sign in ("no_kv", "auto_fit"):
        return "lower max_num_batched_tokens and max_num_seqs (smaller activations), or raise tensor_parallel_size"
    return "" if s.sign == "kv_ram" else "use kv_cache_dtype fp8 (half the bytes, answers can change), or more GPUs"


def _runtime_peak(s: Situation) -> list[str]:
    if s.sign == "workspace":
        return _workspace(s)
    return {"warmup": _warmup_peak, "graph_capture": _capture_peak}.get(s.phase or "", _serving_peak)(s)


def _warmup_peak(s: Situation) -> list[str]:
    if s.root is not None and any(_MULTIMODAL.search(name) for name in s.root.frames):
        return [
            "limit what one prompt may hold: limit_mm_per_prompt, or fewer pixels and frames in mm_processor_kwargs",
            "lower max_num_batched_tokens: images of a whole budget are encoded at once",
            "lower gpu_memory_utilization by 0.01 to 0.02",
        ]
    if s.sign == "sampler":
        most = s.bounds["max_num_seqs_at_most"]
        return [f"lower max_num_seqs below {most + 1:.0f}", "then lower gpu_memory_utilization by 0.01 to 0.02"]
    return ["lower max_num_batched_tokens", "lower max_num_seqs", "lower gpu_memory_utilization by 0.01 to 0.02"]


def _capture_peak(s: Situation) -> list[str]:
    now = s.utilization
    lower = f" (to about {now - 0.02:.2f})" if now is not None else ""
    return [
        f"lower gpu_memory_utilization by 0.01 to 0.02{lower}",
        "capture fewer or smaller sizes: max_cudagraph_capture_size, cudagraph_capture_sizes",
        "give the KV cache an exact size with kv_cache_memory_bytes, with room left for the graphs",
        "last, enforce_eager: no graphs, but every decode step pays kernel launches, so the inter-token latency rises",
    ]


def _workspace(_: Situation) -> list[str]:
    return [
        "raise VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE (bytes; it is taken from the card, so lower "
        "gpu_memory_utilization by as much)",
        "lower max_num_batched_tokens, then max_num_seqs",
        "use another attention_backend",
    ]


def _serving_peak(s: Situation) -> list[str]:
    advice = [
        "leave more memory free: lower gpu_memory_utilization by 0.02 to 0.05, or kv_cache_memory_bytes by 1 to 2 GiB",
        "lower max_num_batched_tokens, then max_num_seqs: a step's activations grow with both",
    ]
    if s.trigger == "request_params":
        advice.insert(0, "limit what a request may ask for: prompt_logprobs needs prompt x vocabulary logits at once")
    return advice


def _arguments(s: Situation) -> list[str]:
    if s.sign == "remote_code":
        return ["give --trust-remote-code if you trust whoever made the model; else use another checkpoint"]
    if s.sign == "kernel":
        return [
            "choose another kernel: attention_backend, a smaller block_size, another kv_cache_dtype or quantization",
            "leave memory settings as they are: this is the GPU's on-chip memory, no utilization changes it",
        ]
    b = s.bounds
    known = {
        "max_num_batched_tokens_at_least": "set max_num_batched_tokens to at least {:.0f}",
        "max_num_seqs_at_most": "or max_num_seqs to at most {:.0f}",
        "max_model_len_at_most": "set max_model_len to at most {:.0f}",
        "tensor_parallel_size_at_most": "lower the product of the parallel sizes to at most {:.0f}",
        "gpu_memory_utilization_at_most": "set gpu_memory_utilization to at most {:.3f}",
    }
    advice = [text.format(b[name]) for name, text in known.items() if name in b]
    return advice or _spelling(s) or ["change the argument that the message names; `vllm serve --help=all` lists them"]


def _spelling(s: Situation) -> list[str]:
    """Flags that look like the unknown ones."""
    words = re.findall(r"--([\w-]+)", s.root.line.message) if s.root is not None and s.sign == "flags" else []
    found = [(w, get_close_matches(w.replace("_", "-"), FLAGS, 1, 0.7)) for w in words]
    return [f"--{word}: did you mean --{near[0]}?" for word, near in found if near]


def _version(s: Situation) -> list[str]:
    return {
        "not_installed": ["install vLLM in the environment that starts the server, or give that environment's path"],
        "flags": ["leave the flag out, or use the vLLM version that has it"],
        "mig": ["use a vLLM after 0.20, or name the slice by its index"],
        "model_type": ["install a transformers that knows the model, within what this vLLM allows"],
        "architecture": ["use a vLLM version that lists this architecture among its supported models"],
        "driver": ["update the driver, or install a vLLM built for this CUDA version"],
    }.get(s.sign, ["reinstall vLLM in an environment of its own, with the torch it pins"])


def _model_missing(s: Situation) -> list[str]:
    return {
        "hub_busy": ["download the model once to a folder and give that; or wait, set HF_TOKEN, and repeat"],
        "gated": ["accept the model's licence and set HF_TOKEN, or download it to a folder and give that"],
        "no_tokenizer": ["give --tokenizer, or send token ids to a server started with skip_tokenizer_init"],
        "bad_weights": ["download the checkpoint again and compare its files with the index"],
    }.get(s.sign, ["give a folder that holds config.json, tokenizer and weights, or a model id that can be downloaded"])


def _neighbour(s: Situation) -> list[str]:
    share = s.bounds.get("gpu_memory_utilization_at_most")
    advice = ["end the other process or use another card, then repeat this very configuration"]
    if share is not None and share > 0.05:
        advice.append(f"to share the card on purpose, give gpu_memory_utilization at most {share:.3f}")
    return advice


def _unknown(s: Situation) -> list[str]:
    """By the sign; without one only what holds for every failure that no text explains."""
    return UNKNOWN.get(s.sign) or [
        "read the evidence's lines and those before them in the server's log",
        "start the server once more by hand with VLLM_LOGGING_LEVEL=DEBUG; report it to vLLM if it fails again",
    ]


_MULTIMODAL = re.compile(r"multimodal|_mm_|vision|image|video|encoder")
"""In the names of functions that encode images, audio and video."""
UNKNOWN = {
    "no_device": ["check `nvidia-smi` and CUDA_VISIBLE_DEVICES as the server sees them (container: --gpus all)"],
    "device_fault": [
        "look for Xid lines in the kernel's log (dmesg): after one the card may need a reset or an exchange",
        "start once with CUDA_LAUNCH_BLOCKING=1 to see which kernel it was; try another attention_backend",
    ],
    "disk": ["free space on the disk that the message names: caches lie under ~/.cache (HF_HOME, VLLM_CACHE_ROOT)"],
    "device_not_ready": [
        "check `nvidia-smi` on the host and in the container; after a driver update the host needs a reboot",
        "on machines with NVSwitch (8 x A100, H100, ...) start the fabric manager of the driver's own version",
    ],
    "placement": [
        "compare `ray status` with tensor_parallel_size x pipeline_parallel_size: lower them, or add nodes",
        "on several nodes set VLLM_HOST_IP to the address Ray uses on each",
    ],
    "permission": [
        "give the server's user that path, or point HF_HOME, VLLM_CACHE_ROOT and TMPDIR to one it may write",
    ],
    "threads": ["raise the limit of processes (docker --pids-limit, ulimit -u), or start fewer servers on the host"],
    "locked_memory": ["raise the limit of locked memory (ulimit -l unlimited, docker --ulimit memlock=-1)"],
    "files": ["raise the limit of open files (ulimit -n 65536, or docker --ulimit nofile=65536)"],
    "nccl": [
        "start once with NCCL_DEBUG=INFO: its first WARN line names the reason",
        "check `nvidia-smi topo -m` and that /dev/shm is large; try disable_custom_all_reduce",
        "with several network cards or hosts, name the card in NCCL_SOCKET_IFNAME",
    ],
}
"""sign of kind `unknown` -> what to try"""


def _hang(s: Situation) -> list[str]:
    advice = ["save the stacks of the processes (py-spy dump), end the whole process group, repeat once"]
    if s.sign == "start_timeout":
        advice.insert(0, "if loading or compiling is only slow, raise VLLM_ENGINE_READY_TIMEOUT_S (seconds)")
    if s.sign == "rpc_timeout":
        advice.append(
            "if a step is only slow, as the first ones that compile, raise VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
        )
    if s.sign == "collective_timeout":
        advice += UNKNOWN["nccl"]
    return advice


def _fixed(*texts: str) -> Callable[[Situation], list[str]]:
    return lambda _: list(texts)


ADVICE: dict[str, Callable[[Situation], list[str]]] = {
    "weights": _weights,
    "kv_capacity": _kv_capacity,
    "runtime_peak": _runtime_peak,
    "arguments": _arguments,
    "version": _version,
    "model_missing": _model_missing,
    "neighbour": _neighbour,
    "orphan": _fixed("end the left-over server by its pid and wait until its memory is back, then repeat"),
    "profiling_race": _fixed(
        "start servers that share a card one after another, each after the one before is ready",
        "wait until the card's memory stands still, then repeat this very configuration",
    ),
    "port": _fixed("repeat on another port; keep VLLM_PORT and the API port of servers on one host apart"),
    "host_ram": _fixed(
        "start fewer servers at once on this host, or give the container more memory",
        "with tensor parallelism in a container, raise /dev/shm (docker --shm-size 10g, or --ipc host)",
        "on the CPU backend, lower kv_cache_memory_bytes or gpu_memory_utilization",
    ),
    "unknown": _unknown,
    "killed": _fixed("look into the kernel's log (dmesg) for the out-of-memory killer, then repeat"),
    "hang": _hang,
}
