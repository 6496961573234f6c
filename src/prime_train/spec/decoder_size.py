"""The shape of a decoder and its number of parameters. Pure, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from prime_train.spec import Model

DENSE_BELOW = 512  # positions of a row, below which fp32 attention over several documents is one call with a mask
CHUNKED_FROM_VOCAB = 32_000  # from here on a GPU computes the loss in chunks: trainer/model/head_loss.py
_CHUNKS = 16
_LEAST_CHUNK_ROWS = 256  # smaller products do not fill a GPU
_CHUNK_LOGITS = 2**26  # 256 MiB in fp32
_VOCAB_MULTIPLE = 128  # rows of the head's matrix on a GPU are computed in tiles of this many


def round_up_vocab(vocab_size: int) -> int:
    """Rows of embedding and head with model.pad_vocab."""
    return math.ceil(vocab_size / _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE


def rows_of_chunk(rows: int) -> int:
    """Positions whose logits exist at a time, of `rows` of a micro-batch, where the loss is computed in chunks."""
    return max(_LEAST_CHUNK_ROWS, math.ceil(rows / _CHUNKS))


def rows_of_logprobs(vocab_size: int) -> int:
    """Tokens whose logits exist at a time, where a GPU computes their log-probabilities: rewards are learnt from."""
    return max(_LEAST_CHUNK_ROWS, _CHUNK_LOGITS // vocab_size)


Router = Literal["softmax", "sigmoid"]


class RopeScaling(NamedTuple):
    """How Llama 3.1 slows its rotary positions down.

    Source: Llama 3, arXiv 2407.21783, s. 3.2; the factors are those of config.json.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The architecture: it fixes the names and shapes of the weights and the computation.

    The defaults of the fields after `qk_norm` are those of a Llama; `spec/hf_families.py` has what the families change.
    With `experts` each block has that many experts of `expert_mlp_size` instead of an MLP of `mlp_size`.
    """

    vocab_size: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    tie_embeddings: bool
    qk_norm: bool
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    model_type: str = ""  # of config.json; "" = the one that follows from the other fields
    biases: Literal["none", "qkv", "all"] = "none"
    layer_norm: bool = False  # LayerNorm with bias instead of RMSNorm
    gated_mlp: bool = True  # SwiGLU; else one GELU between two matrices
    learned_positions: int = 0  # rows of a table of positions; 0 = rotary positions
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None  # tokens that a query sees at most; None = all before it
    experts: int = 0
    experts_per_token: int = 0
    expert_mlp_size: int = 0
    shared_experts: int = 0  # experts that every token visits, computed as one MLP
    router: Router = "softmax"
    norm_expert_weights: bool = True  # the weights of a token's experts add up to 1
    expert_scale: float = 1.0  # what these weights are multiplied by
    pad_vocab: bool = False

    @property
    def vocab_rows(self) -> int:
        """Rows of embedding and head: the vocabulary, and rows that no token has."""
        return round_up_vocab(self.vocab_size) if self.pad_vocab else self.vocab_size

    @property
    def parameters(self) -> int:
        """Numbers that training changes, the balancing biases of experts included. Source: arXiv 2302.13971, s. 2.2."""
        return self._count(self.experts)

    @property
    def active_parameters(self) -> int:
        """Those that one token is multiplied with or added to: all but the experts that it does not visit."""
        return self._count(self.experts_per_token)

    @property
    def shared_mlp_size(self) -> int:
        return self.shared_experts * self.expert_mlp_size

    def _count(self, experts: int) -> int:
        """The parameters of a model with this number of experts in each block, and the router of all of them."""
        width, queries, keys = self.hidden_size, self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * width * queries + 2 * width * keys + (2 * self.head_dim if self.qk_norm else 0)
        attention += {"none": 0, "qkv": queries + 2 * keys, "all": queries + 2 * keys + width}[self.biases]
        norm = 2 * width if self.layer_norm else width
        block = attention + self._count_mlp(experts) + 2 * norm
        embeddings = (self.vocab_size * (1 if self.tie_embeddings else 2) + self.learned_positions) * width
        return self.layers * block + norm + embeddings

    def _count_mlp(self, experts: int) -> int:
        width, matrices = self.hidden_size, 3 if self.gated_mlp else 2
        if self.experts:
            router = self.experts * (width + (1 if self.router == "sigmoid" else 0))
            return router + matrices * width * (experts * self.expert_mlp_size + self.shared_mlp_size)
        biases = self.mlp_size * (matrices - 1) + width if self.biases == "all" else 0
        return matrices * width * self.mlp_size + biases


def architecture_from_fields(model: Model, vocab_size: int) -> Architecture:
    """The architecture of the size fields, with values for unset fields.

    `mlp_size` 8/3 of the width keeps a SwiGLU block as large as a 4x block with two matrices (arXiv 2002.05202, s. 2).
    Unset, `expert_mlp_size` makes the experts of a token together as large as that.
    """
    mlp_size = model.mlp_size or _round_up(model.hidden_size * 8 / 3)
    routed: dict[str, Any] = {
        "experts": model.experts,
        "experts_per_token": model.experts_per_token,
        "expert_mlp_size": model.expert_mlp_size or _round_up(mlp_size / model.experts_per_token),
        "shared_experts": model.shared_experts,
        "router": model.router,
    }
    return Architecture(
        vocab_size=vocab_size,
        layers=model.layers,
        hidden_size=model.hidden_size,
        heads=model.heads,
        kv_heads=model.kv_heads or model.heads,
        head_dim=model.head_dim or model.hidden_size // model.heads,
        mlp_size=mlp_size,
        tie_embeddings=model.tie_embeddings,
        qk_norm=model.qk_norm,
        rope_theta=model.rope_theta,
        norm_eps=model.norm_eps,
        pad_vocab=model.pad_vocab,
        **(routed if model.experts else {}),
    )


def _round_up(size: float) -> int:
    """A multiple of 64, because matrix products are fast in tiles."""
    return math.ceil(size / 64) * 64


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
