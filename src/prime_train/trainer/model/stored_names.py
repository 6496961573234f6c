"""Names the tensors of a Hugging Face file that hold each weight of a Decoder. Opens no file.

A weight is one tensor, one or two tensors for each expert, or a third of one tensor; GPT-2 stores its matrices
transposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from prime_train.spec.decoder_size import Architecture
from prime_train.spec.hf_config import find_model_type

_LLAMA = {
    "embedding": "model.embed_tokens",
    "blocks": "model.layers",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "attention": "self_attn",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "o_proj",
    "query_norm": "q_norm",
    "key_norm": "k_norm",
    "mlp_norm": "post_attention_layernorm",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
    "router": "gate",
    "balance": "e_score_correction_bias",
    "shared": "shared_experts",
}
_GPT2 = {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "blocks": "transformer.h",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "attention_norm": "ln_1",
    "attention": "attn",
    **dict.fromkeys(("query", "key", "value"), "c_attn"),
    "output": "c_proj",
    "mlp_norm": "ln_2",
    "up": "c_fc",
    "down": "c_proj",
}
_OPTIONAL_PREFIX = "transformer."  # the files of gpt2 on the hub leave it out


class StoredTensor(NamedTuple):
    """A tensor of the file, and which part of it and of the weight are the same numbers.

    `expert` and `half` of its row are of the weight, None = all of it; `third` is of the transposed tensor.
    """

    name: str
    expert: int | None = None
    half: int | None = None
    third: int | None = None
    transposed: bool = False

    def take(self, weight: Tensor) -> Tensor:
        """The part of the weight that the tensor holds."""
        row = weight if self.expert is None else weight[self.expert]
        return row if self.half is None else row.tensor_split(2)[self.half]

    def cut(self, stored: Tensor) -> Tensor:
        """The part of the stored tensor, as the weight has it."""
        turned = stored.t() if self.transposed and stored.ndim == 2 else stored
        return turned if self.third is None else turned.tensor_split(3)[self.third]


def list_stored(name: str, config: Architecture) -> list[StoredTensor]:
    """The tensors of the file that hold the Decoder's weight `name`."""
    parts = name.split(".")
    if config.learned_positions:
        third = {"query": 0, "key": 1, "value": 2}.get(parts[-2])
        transposed = parts[-1] == "weight" and parts[-2] in ("query", "key", "value", "output", "up", "down")
        return [StoredTensor(".".join(_GPT2.get(part, part) for part in parts), third=third, transposed=transposed)]
    if parts[-2] == "experts":
        above = hf_name(".".join(parts[:-1]))
        halves = {"gate_proj": 0, "up_proj": 1} if parts[-1] == "gate_up" else {"down_proj": None}
        return [
            StoredTensor(f"{above}.{expert}.{layer}.weight", expert, half)
            for expert in range(config.experts)
            for layer, half in halves.items()
        ]
    return [StoredTensor(hf_name(name))]


def hf_name(name: str) -> str:
    """The name of a weight that is one tensor, in any family but GPT-2: "head.weight" is "lm_head.weight"."""
    return ".".join(_LLAMA.get(part, part) for part in name.split("."))


def to_stored(weights: Mapping[str, Tensor], config: Architecture) -> dict[str, Tensor]:
    """The tensors of the file from all weights that share them. One that is not changed is the same object."""
    found: dict[str, Tensor] = {}
    thirds: dict[str, list[Tensor]] = {}
    for name, weight in weights.items():
        for stored in list_stored(name, config):
            part = stored.take(weight)
            part = part.t() if stored.transposed else part
            if stored.third is None:
                found[stored.name] = part.contiguous()
            else:
                thirds.setdefault(stored.name, []).append(part)  # in the order of query, key and value
    joined = {name: torch.cat(parts, -1) for name, parts in thirds.items()}
    return found | joined


def list_empty(config: Architecture) -> dict[str, tuple[int, int]]:
    """Tensors without a number, with their shapes, which transformers expects in a GLM-4-MoE without shared experts."""
    if not config.experts or config.shared_experts or find_model_type(config) != "glm4_moe":
        return {}
    width = config.hidden_size
    shapes = {"gate": (0, width), "up": (0, width), "down": (width, 0)}
    return {
        hf_name(f"blocks.{number}.mlp.shared.{name}.weight"): shape
        for number in range(config.layers)
        for name, shape in shapes.items()
    }


def is_redundant(name: str, config: Architecture) -> bool:
    """Whether a tensor of a file repeats what config.json or another one has: frequencies, masks, a tied head."""
    if name.endswith(("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")):
        return True
    if config.experts and not config.shared_experts and ".mlp.shared_experts." in name:
        return True  # empty
    return name == "lm_head.weight" and config.tie_embeddings


def spell_as(config: Architecture, names: Iterable[str]) -> dict[str, str]:
    """The tensors of a file by their full names: full name to name in the file."""
    if not config.learned_positions:
        return {name: name for name in names}
    whole = (_OPTIONAL_PREFIX, "lm_head.")
    return {name if name.startswith(whole) else _OPTIONAL_PREFIX + name: name for name in names}
