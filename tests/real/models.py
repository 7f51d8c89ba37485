"""Tiny Llama models with random weights, each made in a second. Run by the Python of a vLLM: `models.py DIRECTORY`.

tiny            200,064 tokens, the vocabulary whose sampler needs gigabytes; 26 MB
tiny-context    1,024 tokens and a context of 4,194,304, more than any KV cache here holds
tiny-truncated  tiny, with its weights cut short
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, INNER, HEADS, LAYERS = 64, 128, 2, 2
SPECIAL = ["<unk>", "<s>", "</s>"]


def tokenizer(vocabulary: int) -> Tokenizer:
    """One token for each byte; the rest of the vocabulary is filled, so that whatever is sampled has a text."""
    known = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    known += [f"token{number}" for number in range(len(known), vocabulary)]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(known)}, [], unk_token=SPECIAL[0]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    return made


def config(vocabulary: int, context: int) -> dict[str, Any]:
    """What Hugging Face's `LlamaConfig` wants to know."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def weights(vocabulary: int) -> dict[str, torch.Tensor]:
    """Small random numbers under the names of a Llama checkpoint."""
    random = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (vocabulary, HIDDEN), "norm": (HIDDEN,)}
    for layer in range(LAYERS):
        block = f"layers.{layer}"
        shapes |= {f"{block}.self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in "qkvo"}
        shapes |= {f"{block}.mlp.{part}_proj": (INNER, HIDDEN) for part in ("gate", "up")}
        shapes |= {f"{block}.mlp.down_proj": (HIDDEN, INNER)}
        shapes |= {f"{block}.{part}_layernorm": (HIDDEN,) for part in ("input", "post_attention")}
    return {
        f"model.{name}.weight": (torch.randn(shape, generator=random) * 0.02 + (len(shape) == 1)).bfloat16()
        for name, shape in shapes.items()
    }


def make(directory: Path, vocabulary: int, context: int) -> None:
    """Write a model that every user may read."""
    directory.mkdir(parents=True)
    tokenizer(vocabulary).save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": SPECIAL[0], "eos_token": SPECIAL[2]}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps(config(vocabulary, context), indent=2))
    save_file(weights(vocabulary), directory / "model.safetensors")
    (directory / "model.safetensors").chmod(0o644)


def main(directory: Path) -> None:
    """Make all three."""
    make(directory / "tiny", 200064, 4096)
    make(directory / "tiny-context", 1024, 4194304)
    shutil.copytree(directory / "tiny", directory / "tiny-truncated")
    with (directory / "tiny-truncated/model.safetensors").open("r+b") as file:
        file.truncate(9_000_000)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
