"""Writes a model folder that vLLM serves: a Qwen3 of a hundred thousand random parameters, and a tokenizer of bytes.

It imports neither torch nor transformers, because that takes longer than a start of a forked server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from prime_train import spec
from prime_train.spec.decoder_size import Architecture, architecture_from_fields
from prime_train.spec.hf_config import describe_decoder

CTX_TOKENS = 512
END = "<|endoftext|>"


def write(folder: Path) -> None:
    folder.mkdir()
    vocabulary = {letter: number for number, letter in enumerate([END, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(special), encoding="utf-8")
    # vLLM 0.32 attends on a CPU with heads of 32 numbers and more.
    model = spec.Model(
        layers=2, hidden_size=64, heads=4, kv_heads=2, head_dim=32, mlp_size=128, qk_norm=True, norm_eps=1e-6
    )
    sizes = architecture_from_fields(model, len(vocabulary))
    config = describe_decoder(sizes, ctx_tokens=CTX_TOKENS, stop_token=0)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    random = np.random.default_rng(0)
    weights = {
        name: np.ones(shape, np.float32) if len(shape) == 1 else random.normal(0, 0.02, shape).astype(np.float32)
        for name, shape in _list_weights(sizes)
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _list_weights(sizes: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each tensor, as transformers names them."""
    width, queries, keys = sizes.hidden_size, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    yield "model.embed_tokens.weight", (sizes.vocab_size, width)
    yield "model.norm.weight", (width,)
    for layer in range(sizes.layers):
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
            "self_attn.q_norm": (sizes.head_dim,),
            "self_attn.k_norm": (sizes.head_dim,),
            "self_attn.q_proj": (queries, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, queries),
            "mlp.gate_proj": (sizes.mlp_size, width),
            "mlp.up_proj": (sizes.mlp_size, width),
            "mlp.down_proj": (width, sizes.mlp_size),
        }
        yield from ((f"model.layers.{layer}.{name}.weight", shape) for name, shape in shapes.items())
