"""What vLLM refuses to start with: arguments, models, versions. Texts: vLLM 0.32 config/*.py (docs of each rule:
engine/arg_utils.py), transformers_utils/config.py:840, model_executor/model_loader/default_loader.py:260,
model_executor/models/registry.py:1206, argparse, pydantic, huggingface_hub, transformers, triton.

A kernel that needs more on-chip memory than the GPU has counts as `arguments`: the arguments chose the kernel, every
boot of them fails alike, and no memory setting helps. A vLLM that is not installed counts as `version`."""

from optimizer.diagnosis.sign import sign

ARGPARSE = r"^(?:\S*vllm|\S+\.py|\S*api_server|\S*python[\d.]* -m \S+)(?: [\w-]+)*: error: "
ARGUMENT_TEXTS = (
    r"must be (?:divisible by|greater than|less than|at least|a multiple of|one of|positive|between)",
    r"cannot be (?:greater than|less than|larger than|used with|combined)|is not a multiple of|mutually exclusive",
    r"[Ss]elected backend \S+ is not valid|No valid attention backend|No common block size|is not supported with",
    r"Quantization method specified in the model config|[Uu]nknown quantization method",
    r"Cannot find the config file for|max_num_\w+ \(\d+\) (?:must|cannot)",
    r"quantization method \S+ is not supported|Bfloat16 is only supported|enough slots to schedule",
    r"Invalid prefix_match_unit|is not supported for the current GPU|is only supported on",
    r"should be consistent with the max value of cudagraph|is incompatible with PYTORCH_CUDA_ALLOC_CONF",
    r"Number of experts in the model must|async scheduling is only supported|does not support async scheduling",
    r"\d+ is not divisible by \d+|Too large swap space",
    r"is greater than max_lora_rank|Unknown attention backend|\bis not a valid (?:argument|value|\w+Backend)",
    r"attention backend \S+ is not|[Uu]nsupported (?:kv[_ ]cache|block|dtype)|block_size .*(?:not supported|must)",
)

SIGNS = (
    sign(
        "not_installed",
        "version",
        r"(?:^|: )vllm: (?:command )?not found|command not found: vllm\b|\"vllm\": executable file not found"
        r"|env: .?vllm.?: No such file|No module named '?vllm(?:'|\s*$)",
        "vLLM is not installed where the server was to start",
        "config",
        is_bare=True,
    ),
    sign(
        "kernel",
        "arguments",
        r"out of resources?: (?P<what>shared memory|tensor memory|registers?|threads?)"
        r"(?:, Required: (?P<needed>\d+), Hardware limit: (?P<limit>\d+))?",
        "a Triton kernel needs more {what} than a multiprocessor of this GPU has (no device memory is missing)",
        is_config_fault=True,
        is_bare=True,
    ),
    sign(
        "hub_busy",
        "model_missing",
        r"429 Client Error|HfHubHTTPError: 429|huggingface\S* .*Too Many Requests|50\d Server Error: .*huggingface",
        "the model hub turned the download away for now",
    ),
    sign(
        "gated",
        "model_missing",
        r"GatedRepoError|gated repo|Access to model .* is restricted|40[13] Client Error|Invalid user token",
        "the model hub refused access to the model",
        "config",
    ),
    sign(
        "no_tokenizer",
        "model_missing",
        r"No tokenizer file found|Couldn't instantiate the backend tokenizer|Can't load tokenizer"
        r"|Failed to load the tokenizer|tokenizer\.json.*(?:No such file|not found)|No such file.*tokenizer",
        "the model's tokenizer files are missing",
        "config",
    ),
    sign(
        "no_weights",
        "model_missing",
        r"Cannot find any model weights with `?(?P<model>[^`]*)|no file named .*(?:safetensors|\.bin)",
        "the model's weight files are missing",
        "load",
    ),
    sign(
        "bad_weights",
        "model_missing",
        r"SafetensorError|Error while deserializing header|weights were not initialized from checkpoint"
        r"|PytorchStreamReader failed|unexpected EOF.*corrupted|invalid load key",
        "the model's weight files are damaged or incomplete",
        "load",
    ),
    sign(
        "no_model",
        "model_missing",
        r"Invalid repository ID or local directory specified|Could not detect config format|HFValidationError"
        r"|Repo id must be in the form|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|(?:Repository|Revision|Entry)NotFoundError"
        r"|We couldn't connect to '?https?://huggingface|couldn't find them in the cached files"
        r"|does not appear to have a file named|is not a local folder and is not a valid model"
        r"|Can't load the configuration of|host='huggingface\.co'"
        r"|No such file or directory: '[^']*(?:config\.json|params\.json|\.safetensors)'",
        "the model was not found",
        "config",
    ),
    sign(
        "mig",
        "version",
        r"invalid literal for int\(\) with base 10: b?[\"']MIG-",
        "this vLLM does not take a MIG UUID in CUDA_VISIBLE_DEVICES",
        "config",
    ),
    sign(
        "model_type",
        "version",
        r"[Uu]nrecognized model type"
        r"|model type `?(?P<type>[\w.-]+)`? but Transformers does not recognize this architecture"
        r"|does not recognize this architecture|Unrecognized (?:configuration class|model in)",
        "the installed transformers does not know this model's architecture",
        "config",
    ),
    sign(
        "architecture",
        "version",
        r"Model architectures? (?P<names>\[[^\]]*\]) (?:are|is) not supported|has no vLLM implementation and",
        "this vLLM has no implementation of the model's architecture",
        "config",
    ),
    sign(
        "library",
        "version",
        r"undefined symbol|lib\w+\.so[\d.]*: cannot open shared object|version `?GLIBC\S* not found"
        r"|^ModuleNotFoundError|cannot import name|No module named '|operator torchvision|DLL load failed"
        r"|was compiled (?:with|for) (?:CUDA|torch)|requires? (?:transformers|torch|numpy)\s*[<>=!~]",
        "installed libraries do not fit together",
    ),
    sign(
        "driver",
        "version",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old|no kernel image is available"
        r"|unsupported toolchain|forward compatibility was attempted|system has unsupported display driver",
        "this vLLM's CUDA build does not run on this GPU or driver",
    ),
    sign(
        "inspect",
        "version",
        r"Model architectures? .* failed to be inspected",
        "vLLM could not load the model's class: a library or device setting it does not understand",
        "config",
        rank="report",
    ),
    sign(
        "remote_code",
        "arguments",
        r"contains custom code which must be executed|trust_remote_code=True",
        "the model brings code of its own, which is only run if the arguments allow it",
        "config",
        is_config_fault=True,
        is_bare=True,
    ),
    sign(
        "derived_length",
        "arguments",
        r"max_model_len \((?P<max_model_len>\d+)\) is greater than the derived max_model_len "
        r"\(\w+=(?P<derived>\d+)",
        "max_model_len {max_model_len} is more than the model was made for ({derived})",
        "config",
        is_config_fault=True,
    ),
    sign(
        "budget_below_length",
        "arguments",
        r"max_num_batched_tokens \((?P<budget>\d+)\) is smaller than max_model_len \((?P<max_model_len>\d+)\)",
        "without chunked prefill max_num_batched_tokens {budget} must reach max_model_len {max_model_len}",
        "config",
        is_config_fault=True,
    ),
    sign(
        "budget_below_seqs",
        "arguments",
        r"max_num_batched_tokens \((?P<budget>\d+)\) must be greater than or equal to max_num_seqs \((?P<n_seqs>\d+)\)",
        "max_num_batched_tokens {budget} is below max_num_seqs {n_seqs}",
        "config",
        is_config_fault=True,
    ),
    sign(
        "world_size",
        "arguments",
        r"World size \((?P<n_ranks>\d+)\) is larger than the number of available GPUs \((?P<n_gpus>\d+)\)",
        "the parallel sizes need {n_ranks} GPUs, {n_gpus} are visible",
        "config",
        is_config_fault=True,
    ),
    sign(
        "flags",
        "arguments",
        ARGPARSE + r"unrecognized arguments: (?P<flags>.+)",
        "vLLM does not know {flags}",
        "config",
        is_config_fault=True,
        is_bare=True,
    ),
    sign(
        "keyword",
        "arguments",
        r"unexpected keyword argument '(?P<flags>\w+)'|Extra inputs are not permitted",
        "vLLM does not know an argument",
        is_config_fault=True,
        rank="report",
    ),
    sign(
        "flag_value",
        "arguments",
        ARGPARSE + r"(?P<what>.+)",
        "vLLM refuses {what}",
        "config",
        is_config_fault=True,
        is_bare=True,
    ),
    sign(
        "rule",
        "arguments",
        "|".join(ARGUMENT_TEXTS),
        "vLLM refuses the combination of arguments",
        is_config_fault=True,
    ),
    sign(
        "value_error",
        "arguments",
        r"^\s*Value error, (?P<what>.+)",
        "{what}",
        "config",
        is_config_fault=True,
        is_bare=True,
        is_vague=True,
    ),
    sign(
        "validation",
        "arguments",
        r"ValidationError: \d+ validation errors? for (?P<config>\w+)",
        "vLLM refuses an argument of {config}",
        "config",
        is_config_fault=True,
        is_vague=True,
    ),
)
