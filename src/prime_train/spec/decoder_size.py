"""The shape of a decoder and its number of parameters. Pure, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from prime_train.spec import Model

KNOWN_MODEL_TYPES = ("llama", "qwen3")  # the model types of the bundled trainer
DENSE_BELOW = 512  # positions of a row, below which fp32 attention over several documents is one call with a mask
_QWEN3_HEAD_DIM = 128  # Qwen3Config's default in transformers 5


CHUNKED_FROM_VOCAB = 32_000  # from here on a GPU computes the loss in chunks: trainer/head_loss.py
_CHUNKS = 16
_LEAST_CHUNK_ROWS = 256  # smaller products do not fill a GPU
_VOCAB_MULTIPLE = 128  # rows of the head's matrix on a GPU are computed in tiles of this many


def round_up_vocab(vocab_size: int) -> int:
    """Rows of embedding and head with model.pad_vocab."""
    return math.ceil(vocab_size / _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE


def rows_of_chunk(rows: int) -> int:
    """Positions whose logits exist at a time, of `rows` of a micro-batch, where the loss is computed in chunks."""
    return max(_LEAST_CHUNK_ROWS, math.ceil(rows / _CHUNKS))


class Architecture(NamedTuple):
    vocab_size: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    tie_embeddings: bool
    qk_norm: bool

    @property
    def parameters(self) -> int:
        """Trainable numbers of a Llama-style decoder without biases. Source: arXiv 2302.13971, s. 2.2."""
        width, queries, keys = self.hidden_size, self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * width * queries + 2 * width * keys + (2 * self.head_dim if self.qk_norm else 0)
        block = attention + 3 * width * self.mlp_size + 2 * width
        embeddings = self.vocab_size * width * (1 if self.tie_embeddings else 2)
        return self.layers * block + width + embeddings


def architecture_from_fields(model: Model, vocab_size: int) -> Architecture:
    """The architecture of the size fields, with values for unset fields.

    `mlp_size` 8/3 of the width keeps a SwiGLU block as large as a 4x block with two matrices.
    Source: arXiv 2002.05202, s. 2.
    """
    return Architecture(
        vocab_size=vocab_size,
        layers=model.layers,
        hidden_size=model.hidden_size,
        heads=model.heads,
        kv_heads=model.kv_heads or model.heads,
        head_dim=model.head_dim or model.hidden_size // model.heads,
        mlp_size=model.mlp_size or math.ceil(model.hidden_size * 8 / 3 / 64) * 64,
        tie_embeddings=model.tie_embeddings,
        qk_norm=model.qk_norm,
    )


def architecture_from_config(config: Mapping[str, object]) -> Architecture | None:
    """The architecture of a Hugging Face config.json; None if a number is missing or is not a positive integer."""

    def number(key: str, default: object = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if type(value) is not int or value <= 0:
            raise ValueError(key)
        return value

    is_qwen3 = config.get("model_type") == "qwen3"
    try:
        heads, hidden_size = number("num_attention_heads"), number("hidden_size")
        return Architecture(
            vocab_size=number("vocab_size"),
            layers=number("num_hidden_layers"),
            hidden_size=hidden_size,
            heads=heads,
            kv_heads=number("num_key_value_heads", heads),
            head_dim=number("head_dim", _QWEN3_HEAD_DIM if is_qwen3 else hidden_size // heads),
            mlp_size=number("intermediate_size"),
            tie_embeddings=bool(config.get("tie_word_embeddings", False)),
            qk_norm=is_qwen3,
        )
    except ValueError:
        return None


def scaled_positions(positions: int, scaling: Mapping[str, Any]) -> int | None:
    """The context in tokens that vLLM allows a model with rope scaling; None if it is not known.

    `scaling` is rope_scaling or rope_parameters of config.json. For some kinds, `positions` includes the scaling
    already; yarn scales its own original_max_position_embeddings.
    Source: vllm-project/vllm@0052a5b, vllm/config/model.py, _get_and_verify_max_len.
    """
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("su", "longrope", "llama3"):
        return positions
    if any(isinstance(below, Mapping) for below in scaling.values()):
        return None  # a scaling for each kind of layer
    factor = _number(scaling.get("factor", 1.0))
    base = _number(scaling.get("original_max_position_embeddings")) if kind == "yarn" else positions
    return None if factor is None or base is None or not math.isfinite(factor * base) else int(factor * base)


def _number(value: object) -> float | None:
    """The value if it is a number above 0, else None."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
