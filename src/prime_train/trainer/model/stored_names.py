"""Names the tensors of a Hugging Face file that hold each weight of a Decoder. Opens no file.

A weight is one tensor, one or two tensors for each expert, or a third of one tensor; GPT-2 stores its matrices
transposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from prime_train.checkpoints import layout
from prime_train.spec.decoder_size import Architecture
from prime_train.spec.hf_config import find_model_type
from prime_train.trainer.saves.dcp_reader import PackedReader, Planner
from prime_train.trainer.saves.tensor_files import FileTensor


class SavedTensors:
    """The tensors and texts of a checkpoint by their names: "model.norm.weight". Raises UnlikeError.

    A sharded tensor is read as a whole; only what `load` returned last is in memory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader = PackedReader(folder, layout.entries(folder))
        self._stored: dict[str, Any] = self._reader.read_metadata().state_dict_metadata

    def list_tensors(self, prefix: str) -> list[FileTensor]:
        """The tensors whose names begin with `prefix`, without it, in the order in which they were saved."""
        return [
            FileTensor(name.removeprefix(prefix), stored.properties.dtype, tuple(stored.size))
            for name, stored in self._stored.items()
            if name.startswith(prefix) and isinstance(stored, TensorStorageMetadata)
        ]

    def list_texts(self) -> list[str]:
        return [name for name, stored in self._stored.items() if not isinstance(stored, TensorStorageMetadata)]

    def load(self, name: str) -> Tensor:
        stored: TensorStorageMetadata = self._stored[name]
        state = {name: torch.empty(stored.size, dtype=stored.properties.dtype)}
        self._fill(state)
        return state[name]

    def load_text(self, name: str) -> str:
        state = {name: ""}
        self._fill(state)
        return state[name]

    def load_into(self, state: dict[str, Any]) -> None:
        """Fill the tensors of a nested state, each by its name. A rank's part of a sharded tensor is filled alone."""
        self._fill(state)

    def _fill(self, state: dict[str, Any]) -> None:
        try:
            load(state, storage_reader=self._reader, planner=Planner(), no_dist=True)
        except CheckpointException as error:  # a BaseException (torch 2.13), which `except Exception` does not catch
            raise ValueError(f"{self.folder.name} does not load: {error}") from error


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

    `expert`: the row of the weight, and `half` the half of that row; None = all of it. `third`: of the tensor's first
    dimension, once it is transposed.
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
    """The tensors of the file, from weights of a Decoder: all that share a tensor. One that is not changed is the
    same object. Also for weights on the meta device."""
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
    """Tensors of the file without a number, with their shapes.

    transformers has them in a GLM-4-MoE without shared experts, and expects them.
    """
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
    """Whether a tensor of a file repeats what config.json or another tensor has.

    Old Llama folders contain the rotary frequencies, those of GPT-2 the causal mask, and some tied models the head.
    """
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
