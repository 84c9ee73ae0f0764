"""Tiny models without weights: a configuration and a tokenizer of one word for each token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tiny_llama import CONFIG as LLAMA

if TYPE_CHECKING:
    from pathlib import Path

ALPHABET = ["<unk>", "<s>", "</s>", *"abc", *(f"<{number}>" for number in range(6, 256))]

MIXTRAL = {
    **LLAMA,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
GEMMA3 = {
    **LLAMA,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "query_pre_attn_scalar": 32,
}
BERT = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "torch_dtype": "float32",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
CONFIGURATIONS = {"llama": LLAMA, "mixtral": MIXTRAL, "gemma3": GEMMA3, "bert": BERT}


def make(name: str, directory: Path) -> Path:
    """Write the model ``name`` with its tokenizer into ``directory``, and return where it is."""
    model = directory / name
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIGURATIONS[name]))
    write_tokenizer(model)
    return model


def write_tokenizer(model: Path) -> None:
    """Write one that has a word for each token into the directory of a model."""
    words = {"type": "WordLevel", "vocab": {word: number for number, word in enumerate(ALPHABET)}, "unk_token": "<unk>"}
    (model / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": words}))
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    (model / "tokenizer_config.json").write_text(json.dumps(names))
