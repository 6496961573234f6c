"""Writes small model folders: a tokenizer that works, weights of zeros, and chat templates of the kinds there are."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

VOCAB_SIZE = 384
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 256 + 2,
}

# Each message between marks, tools in the system message, calls as JSON: the shape of ChatML with hermes calls.
_HEAD = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\\n' }}\
{%- endif %}"""
_CALLS = """\
{%- for call in message.tool_calls or [] %}\
{{ '<tool_call>\\n' }}{"name": "{{ call.function.name }}", "arguments": \
{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}}\
{{ '\\n</tool_call>' }}{% endfor %}"""
_PROMPT = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
STEADY = (
    _HEAD
    + "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    + _CALLS
    + "{{ '<|im_end|>\\n' }}{% endfor %}"
    + _PROMPT
)
# Drops what stands before </think> in every answer that a question follows.
FORGETFUL = (
    _HEAD
    + "{%- set last = namespace(question=0) %}"
    + "{%- for message in messages %}{% if message.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}"
    + "{% endfor %}"
    + "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    + "{%- if message.role == 'assistant' and loop.index0 < last.question %}"
    + "{{ message.content.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ message.content }}{% endif %}"
    + _CALLS
    + "{{ '<|im_end|>\\n' }}{% endfor %}"
    + _PROMPT
)
# Calls as XML: the shape of Qwen3-Coder.
XML_CALLS = STEADY.replace(
    _CALLS,
    "{%- for call in message.tool_calls or [] %}{{ '<tool_call>\\n<function=' + call.function.name + '>\\n' }}"
    "{%- for name, value in call.function.arguments | items %}"
    "{{ '<parameter=' + name + '>\\n' + value + '\\n</parameter>\\n' }}{% endfor %}"
    "{{ '</function>\\n</tool_call>' }}{% endfor %}",
)
WITHOUT_TOOLS = STEADY.replace(_HEAD, "").replace(_CALLS, "")


def write_model(
    folder: Path,
    config: Mapping[str, Any] = QWEN3,
    *,
    template: str | None = STEADY,
    licence: str = "apache-2.0",
    files: Mapping[str, str] | None = None,
) -> Path:
    """A folder that can be trained, served and chatted with, unless what is given makes it otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "README.md").write_text(f"---\nlicense: {licence}\ntags:\n- text-generation\n---\n# A model\n")
    tokens = {"eos_token": "<|im_end|>", "model_max_length": 131072, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens), encoding="utf-8")
    write_tokenizer(folder / "tokenizer.json")
    write_weights(folder / "model.safetensors", tensors_of(config))
    for name, text in (files or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def write_tokenizer(path: Path, special: Sequence[str] = SPECIAL) -> None:
    """A byte-level tokenizer: 256 bytes, then the special tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's alphabet of bytes
    rest = [number for number in range(256) if number not in printable]
    letters = {number: chr(number) for number in printable} | {number: chr(256 + n) for n, number in enumerate(rest)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": 256 + n, "content": token, "special": True, **flags} for n, token in enumerate(special)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {letters[n]: n for n in range(256)}, "merges": []},
    }
    path.write_text(json.dumps(content), encoding="utf-8")


def tensors_of(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the tensors that a Qwen3 of these sizes has."""
    width, layers = config.get("hidden_size", 32), config.get("num_hidden_layers", 2)
    heads, inner = config.get("num_attention_heads", 4), config.get("intermediate_size", 64)
    if any(type(size) is not int or size < 1 for size in (width, layers, heads, inner)):
        width, layers, heads, inner = 32, 2, 4, 64
    kv_heads, head_dim = config.get("num_key_value_heads", heads), config.get("head_dim", 8)
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB_SIZE, width),
        "model.norm.weight": (width,),
    }
    for layer in range(layers):
        block = f"model.layers.{layer}."
        tensors |= {
            f"{block}self_attn.q_proj.weight": (heads * head_dim, width),
            f"{block}self_attn.k_proj.weight": (kv_heads * head_dim, width),
            f"{block}self_attn.v_proj.weight": (kv_heads * head_dim, width),
            f"{block}self_attn.o_proj.weight": (width, heads * head_dim),
            f"{block}self_attn.q_norm.weight": (head_dim,),
            f"{block}self_attn.k_norm.weight": (head_dim,),
            f"{block}mlp.gate_proj.weight": (inner, width),
            f"{block}mlp.up_proj.weight": (inner, width),
            f"{block}mlp.down_proj.weight": (width, inner),
            f"{block}input_layernorm.weight": (width,),
            f"{block}post_attention_layernorm.weight": (width,),
        }
    return tensors


def header(tensors: Mapping[str, tuple[int, ...]], dtype: str = "BF16", item_bytes: int = 2) -> tuple[bytes, int]:
    """The beginning of a safetensors file, and how many bytes of weights follow it."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        start, end = end, end + math.prod(shape) * item_bytes
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(described).encode()
    return struct.pack("<Q", len(text)) + text, end


def write_weights(path: Path, tensors: Mapping[str, tuple[int, ...]], dtype: str = "BF16", item_bytes: int = 2) -> None:
    """A whole safetensors file of zeros: sparse, so that size costs no disk."""
    start, size = header(tensors, dtype, item_bytes)
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(len(start) + size)
