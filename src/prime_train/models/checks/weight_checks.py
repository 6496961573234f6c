"""Compares the tensors of a model with its config.json and with each other. Pure, from the headers alone.

What transformers refuses or initialises at random is found for every family whose tensors estimate/model counts: a
size that differs, a missing tensor, block or head. For other families, for quantised weights and beside a vision
encoder only the checks run that hold for every decoder.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from prime_train.estimate.model.families import FAMILIES
from prime_train.estimate.model.mixed_decoders import READERS
from prime_train.estimate.model.shape import ModelShape, ShapeError, shape_from_config
from prime_train.models.checks.name_checks import find_name_fault
from prime_train.models.read.config import ModelConfigFile
from prime_train.models.read.model_files import TensorGroup, Weights
from prime_train.models.read.safetensors_header import is_embedding, is_head, is_vision

_ALIKE = FAMILIES.keys() - READERS.keys()  # families whose blocks the shape describes
# Left by a wrapper of the model when it was saved. Source: torch DistributedDataParallel, torch.compile, FSDP1, peft.
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "base_model.model.")
# Buffers that older versions of transformers saved, and the four scalars of the activation xIELU.
_BUFFER = re.compile(r"(?:rotary_emb\.inv_freq|act_fn\.\w+|attn\.(?:masked_)?bias|attention\.(?:masked_)?bias)$")
_INTEGERS = frozenset(("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL"))
_OTHER_MODEL = "config.json and the weights belong to different models"
# vLLM compares the loaded names with its parameters unless the model is quantised. Source: vLLM 0.32,
# model_executor/model_loader/default_loader.py, track_weights_loading.
_RANDOM = "transformers fills what is missing with random numbers and continues; vLLM refuses a model in full precision"
_COPY_CONFIG = "copy config.json from the model that the weights belong to"
_SAVE_AGAIN = "save or download the model again"


class WeightFault(NamedTuple):
    what: str
    why: str = _OTHER_MODEL
    fix: str = _COPY_CONFIG


def find_weight_faults(weights: Weights, config: ModelConfigFile) -> Iterator[WeightFault]:
    """The faults; those that explain others come first."""
    shape = config.shape
    if shape is None:
        return
    yield from _wrapped(weights)
    yield from _blocks(weights, config, shape)
    yield from _names(weights, config)
    if config.quantization:
        return
    yield from _embedding(weights, shape)
    yield from _integers(weights)
    if config.has_vision or not weights.groups or config.text_type not in _ALIKE:
        return
    yield from _head(weights, shape)
    if not shape.kv_lora_rank:
        yield from _sizes(weights, shape)
    yield from _unequal_blocks(weights, shape)
    yield from _count(weights, config, shape)


def find_unused(weights: Weights, config: ModelConfigFile) -> str:
    """A description of the numbers that config.json does not describe, "" if there are none or it is not known."""
    shape = config.shape
    known = config.text_type in _ALIKE and not (config.has_vision or config.quantization)
    if shape is None or not known or not weights.groups:
        return ""
    excess = _stored(weights, shape) - shape_from_config(config.values).parameters
    return f"{excess:,} of the stored numbers have no place in the model of config.json" if excess > 0 else ""


def _wrapped(weights: Weights) -> Iterator[WeightFault]:
    found = [prefix for group in weights.groups for prefix in _WRAPPERS if group.name.startswith(prefix)]
    if found and len(found) == len(weights.groups):
        yield WeightFault(
            f'the names of all tensors begin with "{found[0]}"',
            "a wrapper was saved instead of the model, and no program finds a tensor by its name",
            "save the model inside the wrapper, or remove the prefix from the names",
        )


def _names(weights: Weights, config: ModelConfigFile) -> Iterator[WeightFault]:
    """Names that no program finds. Those that only lack the root hinder serving alone: check_vllm has it."""
    fault = find_name_fault(weights, config)
    if fault is not None and not fault.base_only:
        yield WeightFault(
            fault.what,
            f"{config.architecture or config.text_type} finds a tensor by its name; {_RANDOM}",
            "rename the tensors as the model's own class saves them: save_pretrained of the causal language model",
        )


def _blocks(weights: Weights, config: ModelConfigFile, shape: ModelShape) -> Iterator[WeightFault]:
    if 0 < weights.layers < shape.layers:
        yield WeightFault(
            f"the weights have {weights.layers} blocks, config.json has num_hidden_layers = {shape.layers}"
        )
    # Blocks that predict further tokens have tensors of their own, for example eh_proj, and are left out on purpose.
    by_block = _names_by_block(weights)
    extra = [has.keys() for block, has in by_block.items() if block >= shape.layers]
    plain = by_block.get(0, {}).keys()
    predictors = [config.text.get(key) for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers")]
    is_known = config.text_type in _ALIKE and not config.has_vision
    if extra and is_known and not any(predictors) and all(names <= plain for names in extra):
        yield WeightFault(
            f"the weights have {weights.layers} blocks, config.json has num_hidden_layers = {shape.layers}",
            "transformers leaves the other blocks out, so the answers are not those of the trained model",
        )


def _names_by_block(weights: Weights) -> dict[int, dict[str, int]]:
    """Block -> name -> number of its tensors, of the decoder."""
    by_block: dict[int, dict[str, int]] = defaultdict(dict)
    for group in weights.groups:
        if not is_vision(group.name) and not _BUFFER.search(group.name):
            for block, tensors, _ in group.blocks:
                if block >= 0:
                    by_block[block][group.name] = tensors
    return by_block


def _embedding(weights: Weights, shape: ModelShape) -> Iterator[WeightFault]:
    if not weights.embedding:
        return
    rows, width = weights.embedding
    if width != shape.hidden_size:
        yield WeightFault(f"the embedding is {width} wide, config.json has hidden_size = {shape.hidden_size}")
    if rows != shape.vocab_size:
        yield WeightFault(
            f"the embedding has {rows} rows, config.json has vocab_size = {shape.vocab_size}",
            "transformers and vLLM refuse weights of another size",
            f"vocab_size = {rows} in config.json, if the tokenizer belongs to the weights",
        )


def _integers(weights: Weights) -> Iterator[WeightFault]:
    for group in weights.groups:
        kinds = {dtype for dtype, _ in group.shapes} & _INTEGERS
        if kinds and group.name.endswith(".weight"):
            yield WeightFault(
                f"{group.name} has the dtype {min(kinds)}, and config.json has no quantization_config",
                "without it no program knows how to turn the integers into weights",
                "copy quantization_config into config.json, or use the full-precision model",
            )
            return


def _head(weights: Weights, shape: ModelShape) -> Iterator[WeightFault]:
    heads = [group for group in weights.groups if is_head(group.name)]
    has_embedding = any(is_embedding(group.name) for group in weights.groups)
    if not has_embedding and not (heads and shape.tie_embeddings):
        yield WeightFault("there is no token embedding", _RANDOM, _SAVE_AGAIN)
    if not heads and not shape.tie_embeddings:
        yield WeightFault(
            "tie_word_embeddings is false, and there is no lm_head.weight",
            _RANDOM,
            "tie_word_embeddings = true in config.json if the model was trained so, else save the model again",
        )
    for _, size in (each for group in heads for each in group.shapes):
        if size != (shape.vocab_size, shape.hidden_size):
            expected = [shape.vocab_size, shape.hidden_size]
            yield WeightFault(f"{heads[0].name} has the shape {list(size)}, config.json makes it {expected}")
    if shape.tie_embeddings and weights.head_differs:
        yield WeightFault(
            "tie_word_embeddings is true, and lm_head.weight has other numbers than the embedding",
            "transformers then uses both and vLLM only the embedding: trainer and server are different models",
            "tie_word_embeddings = false in config.json if the model was trained so, else delete lm_head.weight",
        )


def _sizes(weights: Weights, shape: ModelShape) -> Iterator[WeightFault]:
    """Projections and MLPs whose shape differs from the one that config.json describes."""
    expected = _expected_sizes(shape)
    for group in weights.groups:
        if is_vision(group.name):
            continue
        part, kind = ("", *group.name.split("."))[-2:]
        if kind != "weight" or part not in expected or ".shared_expert" in group.name:
            continue
        legal = expected[part]
        if ".experts." in group.name:
            legal = _mlp_sizes(shape.hidden_size, shape.expert_mlp_size).get(part, legal)
        for _, size in group.shapes:
            if legal and size not in legal:
                yield WeightFault(f"{group.name} has the shape {list(size)}, config.json makes it {list(legal[0])}")
                return


def _expected_sizes(shape: ModelShape) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The legal shapes of a linear layer by its name, in the families that name it so."""
    hidden, queries = shape.hidden_size, shape.heads * shape.head_dim
    keys = shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[tuple[int, ...], ...]] = {
        "q_proj": ((queries, hidden), (2 * queries, hidden)),  # twice as wide with a gate
        "k_proj": ((keys, hidden),),
        "v_proj": ((keys, hidden),),
        "o_proj": ((hidden, queries),),
        "qkv_proj": ((queries + 2 * keys, hidden),),
        "c_attn": ((hidden, queries + 2 * keys), (queries + 2 * keys, hidden)),  # GPT-2 stores the transposed matrix
        "query_key_value": ((queries + 2 * keys, hidden),),
        "q_norm": ((shape.head_dim,), (queries,)),
        "k_norm": ((shape.head_dim,), (keys,)),
        "input_layernorm": ((hidden,),),
        "post_attention_layernorm": ((hidden,),),
    }
    return sizes | (_mlp_sizes(hidden, shape.mlp_size) if shape.mlp_size else {})


def _mlp_sizes(hidden: int, inner: int) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {
        "gate_proj": ((inner, hidden),),
        "up_proj": ((inner, hidden),),
        "down_proj": ((hidden, inner),),
        "gate_up_proj": ((2 * inner, hidden),),
        "c_fc": ((hidden, inner), (inner, hidden)),
        "dense_h_to_4h": ((inner, hidden),),
        "fc1": ((inner, hidden),),
        "fc2": ((hidden, inner),),
    }


def _unequal_blocks(weights: Weights, shape: ModelShape) -> Iterator[WeightFault]:
    """A block that lacks tensors which another block has. Blocks of different kinds are no subsets of each other."""
    by_block = {block: has for block, has in _names_by_block(weights).items() if block < shape.layers}
    missing = set(range(shape.layers)) - set(by_block) if by_block else set()
    if missing:
        yield WeightFault(f"block {min(missing)} of {shape.layers} has no tensor", _RANDOM, _SAVE_AGAIN)
        return
    kinds = {frozenset(has.items()): block for block, has in sorted(by_block.items(), reverse=True)}
    for has, block in kinds.items():
        for other, beside in kinds.items():
            lacks = _lacks(dict(has), dict(other))
            if lacks:
                name = lacks[0].replace("*", str(block), 1)
                more = f" (and {len(lacks) - 1} more)" if len(lacks) > 1 else ""
                yield WeightFault(f"{name} is missing{more}: block {beside} has it", _RANDOM, _SAVE_AGAIN)
                return


def _lacks(has: dict[str, int], other: dict[str, int]) -> list[str]:
    """The names that `other` has more often, if `has` has nothing that `other` does not have."""
    if has == other or any(number > other.get(name, 0) for name, number in has.items()):
        return []
    return sorted(name for name, number in other.items() if number > has.get(name, 0))


def _count(weights: Weights, config: ModelConfigFile, shape: ModelShape) -> Iterator[WeightFault]:
    try:
        expected = shape_from_config(config.values).parameters
    except ShapeError:
        return
    stored = _stored(weights, shape)
    if stored < expected:
        yield WeightFault(
            f"the weights have {stored:,} numbers, config.json describes {expected:,}: tensors are missing, "
            "or a size differs",
            _RANDOM,
            "save or download the model again, or copy config.json from the model that the weights belong to",
        )


def _stored(weights: Weights, shape: ModelShape) -> int:
    """The numbers in the tensors of the decoder: no buffers, only the blocks of config.json, a tied head once."""
    total = 0
    has_embedding = any(is_embedding(group.name) for group in weights.groups)
    for group in weights.groups:
        if _BUFFER.search(group.name) and _is_buffer(group):
            continue
        if is_head(group.name) and shape.tie_embeddings and has_embedding:
            continue
        total += sum(numbers for block, _, numbers in group.blocks if block < shape.layers)
    return total


def _is_buffer(group: TensorGroup) -> bool:
    """GPT-2's attn.bias is the causal mask, with four axes; attention.bias of others is a parameter with one."""
    return all("inv_freq" in group.name or len(size) != 1 for _, size in group.shapes)
