"""A Llama of four small layers without weights (`--load-format dummy`) and with a tokenizer of bytes."""

from __future__ import annotations

import json
from pathlib import Path

VOCABULARY = 512
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
SPECIAL = ("<s>", "</s>", "<pad>")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "model_max_length": 4096,
    "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
}


def write_tiny_model(directory: Path) -> Path:
    """A model directory that vLLM serves on a CPU in about half a minute."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("config", CONFIG),
        ("tokenizer", _tokenizer()),
        ("tokenizer_config", TOKENIZER_CONFIG),
    ):
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def _tokenizer() -> dict[str, object]:
    """Bytes as GPT-2 writes them: printable ones as themselves, the rest as characters from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    letters = [chr(i) if i in printable else chr(next(others)) for i in range(256)]
    added = [
        {
            "id": i,
            "content": s,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, s in enumerate(SPECIAL)
    ]
    model: dict[str, object] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {s: i for i, s in enumerate([*SPECIAL, *letters])},
        "merges": [],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": model,
    }
