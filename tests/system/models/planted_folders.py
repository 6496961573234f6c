"""Tiny models that transformers makes and saves, and ways to break them. transformers is the judge."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fakes.model_folder import write_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_PLAIN = {key: value for key, value in SIZES.items() if key not in ("head_dim", "num_key_value_heads")}
_GPT2 = {"vocab_size": 384, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1}
_GPT2 |= {"eos_token_id": 2}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT = {key: value for key, value in SIZES.items() if key != "head_dim"} | {
    "kv_lora_rank": 8,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
}
_MIXERS = {key: value for key, value in SIZES.items() if key != "num_hidden_layers"} | {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
    "ssm_state_size": 8,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
}
_DELTA = {"linear_num_heads": 4, "linear_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}
_PER_LAYER = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 384,
    "num_kv_shared_layers": 0,
}
# Name of a model -> (model type, its configuration).
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", SIZES),
    "llama tied": ("llama", SIZES | {"tie_word_embeddings": True}),
    "llama biased": ("llama", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("qwen2", _PLAIN | {"num_key_value_heads": 2}),
    "qwen2 tied": ("qwen2", _PLAIN | {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", SIZES),
    "qwen3 tied": ("qwen3", SIZES | {"tie_word_embeddings": True}),
    "qwen3_moe": ("qwen3_moe", SIZES | _EXPERTS),
    "qwen3_moe mixed": ("qwen3_moe", SIZES | _EXPERTS | {"mlp_only_layers": [0]}),
    "mistral": ("mistral", SIZES),
    "mixtral": ("mixtral", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gemma": ("gemma", SIZES),
    "gemma2": ("gemma2", SIZES),
    "gemma3": ("gemma3_text", SIZES),
    "phi": ("phi", _PLAIN),
    "phi3": ("phi3", _PLAIN | {"num_key_value_heads": 2}),
    "gpt2": ("gpt2", _GPT2),
    "gpt_neox": ("gpt_neox", _PLAIN),
    "olmo2": ("olmo2", _PLAIN),
    "smollm3": ("smollm3", _PLAIN | {"num_key_value_heads": 2}),
    "glm4": ("glm4", SIZES),
    "starcoder2": ("starcoder2", _PLAIN | {"num_key_value_heads": 2}),
    "stablelm": ("stablelm", _PLAIN | {"num_key_value_heads": 2}),
    "cohere": ("cohere", _PLAIN | {"num_key_value_heads": 2}),
    "deepseek_v3": ("deepseek_v3", _LATENT),
    "seed_oss": ("seed_oss", SIZES),
    "exaone4": ("exaone4", SIZES),
    "nemotron_h": ("nemotron_h", _MIXERS),
    "kimi_linear": ("kimi_linear", _LATENT | _DELTA),
    "gemma3n": ("gemma3n_text", SIZES | _PER_LAYER | {"altup_num_inputs": 2, "laurel_rank": 4}),
    "gemma4": ("gemma4_text", SIZES | _PER_LAYER),
    "olmoe": ("olmoe", _PLAIN | {"num_experts": 4, "num_experts_per_tok": 2}),
}
Change = Callable[[Path], None]


def save_model(name: str, folder: Path, shard: str = "") -> Path:
    """Saves a model with random weights; `shard` is the largest size of a weight file."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    model_type, sizes = MODELS[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**sizes)).to(torch.bfloat16)
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    write_tokenizer(folder / "tokenizer.json")
    return folder


def copy_model(source: Path, target: Path, change: Change) -> Path:
    shutil.copytree(source, target)
    change(target)
    return target


def with_config(**values: Any) -> Change:
    """Sets keys of config.json; `...` removes one."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        config = {**json.loads(path.read_text(encoding="utf-8")), **values}
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))

    return change


def with_tensors(change_tensors: Callable[[dict[str, Any]], None]) -> Change:
    """Changes the tensors of model.safetensors, by name."""

    def change(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / "model.safetensors")
        change_tensors(tensors)
        whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(whole, folder / "model.safetensors", {"format": "pt"})

    return change


def without(*names: str) -> Change:
    """Removes every tensor whose name ends with one of `names`."""

    def change(tensors: dict[str, Any]) -> None:
        gone = [name for name in tensors if name.endswith(names)]
        assert gone
        for name in gone:
            del tensors[name]

    return with_tensors(change)


def replaced(name: str, make: Callable[[Any], Any]) -> Change:
    """Replaces each tensor whose name ends with `name`."""

    def change(tensors: dict[str, Any]) -> None:
        found = [each for each in tensors if each.endswith(name)]
        assert found
        for each in found:
            tensors[each] = make(tensors[each])

    return with_tensors(change)


def renamed(rename: Callable[[str], str]) -> Change:
    def change(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[rename(name)] = tensors.pop(name)

    return with_tensors(change)


def with_head(*, equal: bool) -> Change:
    """Stores a head beside the embedding of a tied model."""

    def change(tensors: dict[str, Any]) -> None:
        embedding = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = embedding.clone() if equal else embedding + 1.0

    return with_tensors(change)


def head_alone(folder: Path) -> None:
    """A tied model whose one matrix is stored under the name of the head."""
    renamed(lambda name: "lm_head.weight" if "embed_tokens" in name else name)(folder)


def with_bytes(file: str, change_bytes: Callable[[bytes], bytes]) -> Change:
    def change(folder: Path) -> None:
        path = folder / file
        path.write_bytes(change_bytes(path.read_bytes()))

    return change


def with_text(file: str, text: str) -> Change:
    return with_bytes(file, lambda _: text.encode())


def with_header(change_header: Callable[[dict[str, Any]], None]) -> Change:
    """Changes the JSON of the header of model.safetensors, and leaves the data."""

    def change(content: bytes) -> bytes:
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        change_header(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + size :]

    return with_bytes("model.safetensors", change)


def _shift(header: dict[str, Any]) -> None:
    for name, about in header.items():
        if name != "__metadata__":
            about["data_offsets"] = [place + 64 for place in about["data_offsets"]]


def _retype(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["dtype"] = "BF17"


def without_shard(folder: Path) -> None:
    max(folder.glob("model-*.safetensors")).unlink()


def without_tensor_of_shard(folder: Path) -> None:
    """The index is right, and a shard lacks one of its tensors."""
    from safetensors.torch import load_file, save_file

    path = min(folder.glob("model-*.safetensors"))
    tensors = load_file(path)
    del tensors[max(tensors)]
    save_file(tensors, path, {"format": "pt"})


def _nothing(_folder: Path) -> None:
    pass


# Name -> (model, change, size of a shard).
def _drop_the_first_block(tensors: dict[str, Any]) -> None:
    for name in [name for name in tensors if ".layers.0." in name]:
        del tensors[name]


SOUND: dict[str, tuple[str, Change, str]] = {
    **{name: (name, _nothing, "") for name in MODELS},
    "in shards": ("llama", _nothing, "20KB"),
    "tied, with the same head": ("qwen2 tied", with_head(equal=True), ""),
    "tied, stored as the head": ("qwen2 tied", head_alone, ""),
    "eps of zero": ("llama", with_config(rms_norm_eps=0.0), ""),
    "linear RoPE": (
        "llama",
        with_config(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
        "",
    ),
    "old RoPE": ("llama", with_config(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters=...), ""),
    "infinite number": ("llama", with_config(time_step_limit=[0.0, float("inf")]), ""),
    "without the prefix": ("qwen3 tied", renamed(lambda name: name.removeprefix("model.")), ""),
}
_TENSOR_OF_A_BLOCK = "layers.1.self_attn.q_proj.weight"
BROKEN: dict[str, tuple[str, Change, str]] = {
    "vocabulary below the embedding": ("qwen3 tied", with_config(vocab_size=300), ""),
    "vocabulary above the embedding": ("llama", with_config(vocab_size=400), ""),
    "hidden size": ("mistral", with_config(hidden_size=48), ""),
    "MLP size": ("gemma", with_config(intermediate_size=96), ""),
    "MLP size, GPT-2": ("gpt2", with_config(n_inner=96), ""),
    "heads": ("qwen3", with_config(num_attention_heads=8), ""),
    "key heads": ("llama", with_config(num_key_value_heads=4), ""),
    "key heads, Phi-3": ("phi3", with_config(num_key_value_heads=4), ""),
    "head size": ("qwen3", with_config(head_dim=16), ""),
    "more blocks in the config": ("llama", with_config(num_hidden_layers=3), ""),
    "fewer blocks in the config": ("llama", with_config(num_hidden_layers=1), ""),
    "experts": ("qwen3_moe", with_config(num_local_experts=8), ""),
    "expert size": ("qwen3_moe", with_config(moe_intermediate_size=32), ""),
    "positions, GPT-2": ("gpt2", with_config(n_positions=128), ""),
    "biases that are not stored": ("llama", with_config(attention_bias=True), ""),
    "untied without a head": ("qwen2 tied", with_config(tie_word_embeddings=False), ""),
    "untied without a head, Gemma": ("gemma", with_config(tie_word_embeddings=False), ""),
    "tied with another head": ("qwen2 tied", with_head(equal=False), ""),
    "untied weights called tied": ("llama", with_config(tie_word_embeddings=True), ""),
    "eps NaN": ("qwen3", with_config(rms_norm_eps=float("nan")), ""),
    "eps NaN as transformers writes it": ("qwen3", with_config(rms_norm_eps={"__float__": "NaN"}), ""),
    "eps NaN, GPT-2": ("gpt2", with_config(layer_norm_epsilon={"__float__": "NaN"}), ""),
    "eps as a whole number": ("llama", with_config(rms_norm_eps=0), ""),
    "eps as text": ("llama", with_config(rms_norm_eps="1e-6"), ""),
    "activation": ("llama", with_config(hidden_act="swiglu"), ""),
    "padding token": ("llama", with_config(pad_token_id=384), ""),
    "layer types": ("qwen3", with_config(layer_types=["full_attention"]), ""),
    "RoPE without its factor": ("llama", with_config(rope_parameters={"rope_type": "linear"}), ""),
    "RoPE of an unknown kind": ("llama", with_config(rope_parameters={"rope_type": "ntk", "factor": 2.0}), ""),
    "dtype": ("llama", with_config(dtype="bf16"), ""),
    "key heads that do not divide": ("llama", with_config(num_key_value_heads=3), ""),
    "size as text": ("llama", with_config(hidden_size="32"), ""),
    "flag as text": ("llama", with_config(tie_word_embeddings="no"), ""),
    "half a config": ("llama", with_bytes("config.json", lambda content: content[:200]), ""),
    "config that is a list": ("llama", with_text("config.json", "[]"), ""),
    "unknown type": ("llama", with_config(model_type="llamma"), ""),
    "type of another family": ("llama", with_config(model_type="qwen2"), ""),
    "missing shard": ("llama", without_shard, "20KB"),
    "shard without one of its tensors": ("llama", without_tensor_of_shard, "20KB"),
    "index that is not JSON": ("llama", with_text("model.safetensors.index.json", "{"), "20KB"),
    "half the data": ("llama", with_bytes("model.safetensors", lambda content: content[:-4000]), ""),
    "half the header": ("llama", with_bytes("model.safetensors", lambda content: content[:500]), ""),
    "bytes after the data": ("llama", with_bytes("model.safetensors", lambda content: content + b"\0" * 8), ""),
    "Git LFS pointer": ("llama", with_text("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"), ""),
    "hole in the data": ("llama", with_header(_shift), ""),
    "unknown dtype in the header": ("llama", with_header(_retype), ""),
    "tensor of one block": ("llama", without(_TENSOR_OF_A_BLOCK), ""),
    "tensor of every block": ("qwen3", without("self_attn.q_norm.weight"), ""),
    "bias of every block": ("qwen2", without("self_attn.k_proj.bias"), ""),
    "norm at the end": ("llama", without("model.norm.weight"), ""),
    "norm at the end, GPT-2": ("gpt2", without("ln_f.bias"), ""),
    "embedding": ("llama", without("embed_tokens.weight"), ""),
    "block in the middle": (
        "llama",
        with_tensors(_drop_the_first_block),
        "",
    ),
    "expert of one block": ("qwen3_moe", without("layers.1.mlp.experts.3.up_proj.weight"), ""),
    "wrapped by torch.compile": ("qwen3 tied", renamed(lambda name: f"_orig_mod.{name}"), ""),
    "transposed matrix": ("llama", replaced("k_proj.weight", lambda tensor: tensor.T), ""),
    "head of another size": ("llama", replaced("lm_head.weight", lambda tensor: tensor[:300]), ""),
    "router of another size": ("qwen3_moe", replaced("mlp.gate.weight", lambda tensor: tensor[:3]), ""),
}
