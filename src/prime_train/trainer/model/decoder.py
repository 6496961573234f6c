"""A decoder: RMSNorm, rotary positions, SwiGLU or experts, grouped-query attention; or the parts of GPT-2.

Never reads a file.

Shapes: B sequences, T positions, V vocabulary, P rows of the embedding and the head (V, or V padded), C width of the
residual stream, D width of a head, N counted tokens.
Sources: Llama, arXiv 2302.13971, s. 2.2; grouped-query attention, arXiv 2305.13245; query and key
norms as in Qwen3, arXiv 2505.09388, s. 2; GPT-2 (Radford et al., 2019), s. 2.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from prime_train import spec
from prime_train.spec import decoder_size
from prime_train.trainer.batch import IGNORED
from prime_train.trainer.model.attention import Plan, attend
from prime_train.trainer.model.experts import Mixture
from prime_train.trainer.model.rotary import rotate, rotations
from prime_train.trainer.model.shards import copy_rows, local_part, whole_to_fill

HeadLoss = Callable[[Tensor, Tensor, Tensor, int], Tensor]  # of hidden states, head weight, labels, vocabulary size
HeadLogprobs = Callable[[Tensor, Tensor, "Counted", int], tuple[Tensor, Tensor]]  # with the counted tokens as labels
VOCAB_ROWS = ("embedding.weight", "head.weight")  # parameters with a row for each token
ADAPTERS = ("lora_down", "lora_up")  # ends of the names of parameters that lora.py adds and initialises
ModelConfig = decoder_size.Architecture


class Counted(NamedTuple):
    """Some tokens of a micro-batch, whose log-probabilities are wanted."""

    places: Tensor  # (N,) int64, ascending: the place in the flattened (B, T) whose logits predict the token
    labels: Tensor  # (N,) int64: the tokens
    temperature: float  # divides the logits


def config_of(model: spec.Model, vocab_size: int) -> ModelConfig:
    """The architecture of the config's size fields, with defaults for unset fields."""
    return decoder_size.architecture_from_fields(model, vocab_size)


def _linear(inner: int, outer: int, *, bias: bool = False) -> nn.Linear:
    return nn.Linear(inner, outer, bias=bias)


def _norm(config: ModelConfig) -> nn.LayerNorm | nn.RMSNorm:
    width, eps = config.hidden_size, config.norm_eps
    return nn.LayerNorm(width, eps) if config.layer_norm else nn.RMSNorm(width, eps)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        bias = config.biases != "none"
        self.query = _linear(config.hidden_size, config.heads * config.head_dim, bias=bias)
        self.key = _linear(config.hidden_size, config.kv_heads * config.head_dim, bias=bias)
        self.value = _linear(config.hidden_size, config.kv_heads * config.head_dim, bias=bias)
        self.output = _linear(config.heads * config.head_dim, config.hidden_size, bias=config.biases == "all")
        self.query_norm = nn.RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        self.key_norm = nn.RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, cos: Tensor | None, sin: Tensor | None, plan: Plan) -> Tensor:
        query = self.query(x).unflatten(-1, (-1, self.head_dim))  # (B, T, heads, D)
        key = self.key(x).unflatten(-1, (-1, self.head_dim))  # (B, T, kv_heads, D)
        value = self.value(x).unflatten(-1, (-1, self.head_dim))  # (B, T, kv_heads, D)
        # Before the rotation, as in the families that have these norms.
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if cos is not None and sin is not None:
            query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = attend(query, key, value, plan)  # (B, T, heads, D)
        return cast(Tensor, self.output(mixed.flatten(2)))  # (B, T, C)


class Mlp(nn.Module):
    """SwiGLU. Source: arXiv 2002.05202."""

    def __init__(self, hidden_size: int, mlp_size: int) -> None:
        super().__init__()
        self.gate = _linear(hidden_size, mlp_size)
        self.up = _linear(hidden_size, mlp_size)
        self.down = _linear(mlp_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(F.silu(self.gate(x)) * self.up(x)))  # (B, T, C)


class GeluMlp(nn.Module):
    """The MLP of GPT-2, with the tanh approximation of GELU. Source: arXiv 1606.08415, s. 2."""

    def __init__(self, hidden_size: int, mlp_size: int) -> None:
        super().__init__()
        self.up = _linear(hidden_size, mlp_size, bias=True)
        self.down = _linear(mlp_size, hidden_size, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(F.gelu(self.up(x), approximate="tanh")))  # (B, T, C)


def _mlp(config: ModelConfig) -> nn.Module:
    width = config.hidden_size
    if config.experts:
        return Mixture(config, Mlp(width, config.shared_mlp_size) if config.shared_experts else None)
    return Mlp(width, config.mlp_size) if config.gated_mlp else GeluMlp(width, config.mlp_size)


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = Attention(config)
        self.mlp_norm = _norm(config)
        self.mlp = _mlp(config)

    def forward(self, x: Tensor, cos: Tensor | None, sin: Tensor | None, plan: Plan) -> Tensor:
        # The norms are on the branches, so that gradients pass the stream unscaled from the last block to the first.
        x = x + self.attention(self.attention_norm(x), cos, sin, plan)  # (B, T, C)
        return cast(Tensor, x + self.mlp(self.mlp_norm(x)))  # (B, T, C)


class Decoder(nn.Module):
    """Tokens to logits. Has no dropout, so training and evaluation compute the same.

    Blocks may be compiled or sharded one by one. Embedding and head stay in the root: a tied head is gathered with it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_rows, config.hidden_size)
        self.positions = nn.Embedding(learned, config.hidden_size) if (learned := config.learned_positions) else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = _norm(config)
        # A tied head has no weight of its own, so that a checkpoint and the optimizer hold it once.
        self.head = None if config.tie_embeddings else _linear(config.hidden_size, config.vocab_rows)
        # `build_model` chooses others, because the fastest ones depend on the device and the vocabulary.
        self.head_loss: HeadLoss = whole_loss
        self.head_logprobs: HeadLogprobs = whole_logprobs

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: Plan,
        at: Tensor | None = None,
        labels: Tensor | Counted | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (B, T, V) of the next token at every position; with `at` (B,) only at those positions: (B, V).

        With `labels` (B, T) no logits, but the sum of their cross-entropy, 0-d, and with counted labels their
        log-probabilities and the entropies there, both (N,): a head that is sharded is whole only in here.
        `positions` (B, T) restart at each document; `attention` comes from `plan_attention`.
        """
        config = self.config
        x, cos, sin = self.embedding(tokens), None, None  # (B, T, C)
        if self.positions is not None:
            x = x + self.positions(positions)  # (B, T, C)
        else:
            cos, sin = rotations(positions, config.head_dim, config.rope_theta, config.rope_scaling)  # (B, T, 1, D)
        for block in self.blocks:
            x = block(x, cos, sin, attention)
        # Before the head, so that it computes no logits of other positions.
        if at is not None:
            x = x[torch.arange(len(at), device=x.device), at]  # (B, C)
        head = self.embedding.weight if self.head is None else self.head.weight  # (P, C)
        if isinstance(labels, Counted):
            return self.head_logprobs(self.norm(x), head, labels, config.vocab_size)
        if labels is not None:
            return self.head_loss(self.norm(x), head, labels, config.vocab_size)
        return F.linear(self.norm(x), head)[..., : config.vocab_size]


def build(config: ModelConfig, seed: int, device: torch.device | str = "cpu") -> Decoder:
    """A decoder with new weights: the same for the same seed on any machine and device."""
    with torch.device("meta"):  # torch's default initialisation would cost time and advance its generator
        model = Decoder(config)
    model.to_empty(device="cpu")
    initialise(model, seed)
    return model.to(device)


_RESIDUAL = ("attention.output.weight", "mlp.down.weight", "mlp.experts.down", "mlp.shared.down.weight")


@torch.no_grad()
def initialise(model: Decoder, seed: int) -> None:
    """Normal weights with standard deviation 0.02, smaller for those that write into the residual stream.

    Norms are 1, biases 0.

    Each block adds two writes to the stream; dividing their deviation by sqrt(2 x layers) makes the stream's variance
    independent of depth. Source: GPT-2 (Radford et al., 2019), s. 2.3.
    """
    # On the CPU, because a generator of a GPU gives other numbers.
    generator = torch.Generator().manual_seed(seed)
    residual_scale = 1 / math.sqrt(2 * model.config.layers)
    for buffer in model.buffers():  # of routers
        local_part(buffer).zero_()
    for name, parameter in model.named_parameters():
        if name.endswith(ADAPTERS):
            continue
        if parameter.ndim < 2:
            local_part(parameter).fill_(0.0 if name.endswith(".bias") else 1.0)
            continue
        weight = whole_to_fill(parameter)
        used = weight[: model.config.vocab_size] if name in VOCAB_ROWS else weight  # rows of no token stay 0
        if len(used) < len(weight):
            weight.zero_()
        # The whole weight is drawn, also where this process keeps some rows: the values do not depend on the ranks.
        used.normal_(0.0, 0.02 * (residual_scale if name.endswith(_RESIDUAL) else 1.0), generator=generator)
        copy_rows(parameter, weight)


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every weight by its name, with routers' biases, without padded rows. Allocates none."""
    with torch.device("meta"):
        model = Decoder(replace(config, pad_vocab=False))
        return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def flops_per_token(config: ModelConfig, ctx_tokens: int) -> float:
    """Floating-point operations to train on one token: 6 N + 12 L H Q T.

    N counts the weights that are multiplied with a token: the head, but not an untied embedding, a table of positions,
    or experts that the token does not visit.
    Attention counts the full square with its masked half, as the published MFU figures do.
    Source: PaLM, arXiv 2204.02311, appendix B.
    """
    looked_up = (0 if config.tie_embeddings else config.vocab_size) + config.learned_positions
    multiplied = config.active_parameters - looked_up * config.hidden_size
    return 6.0 * multiplied + 12.0 * config.layers * config.heads * config.head_dim * ctx_tokens


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross-entropy in nats over the labelled positions, 0-d, in fp32. Shapes: (..., V) and (...).

    A sum, because micro-batches and ranks have different numbers of labels: only all sums give the mean of a step.
    """
    return cast(Tensor, _CrossEntropySum.apply(logits.flatten(0, -2), labels.flatten()))  # type: ignore[no-untyped-call]


def whole_loss(hidden: Tensor, weight: Tensor, labels: Tensor, vocab_size: int) -> Tensor:
    """`cross_entropy_sum` of the head's logits, all of them at once. Shapes: (..., C), (P, C), (...)."""
    return cross_entropy_sum(hide_padding(F.linear(hidden, weight), vocab_size), labels)


def whole_logprobs(hidden: Tensor, weight: Tensor, counted: Counted, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities, and entropies without gradients, (N,) fp32. Shapes: hidden (B, T, C), weight (P, C)."""
    logits = F.linear(hidden, weight).flatten(0, 1).index_select(0, counted.places)[:, :vocab_size]  # (N, V)
    log_probs = F.log_softmax(logits.float() / counted.temperature, -1)  # (N, V)
    with torch.no_grad():
        entropy = -(log_probs.exp() * log_probs).sum(-1)  # (N,)
    return log_probs.gather(-1, counted.labels.unsqueeze(-1)).squeeze(-1), entropy


@torch.no_grad()
def hide_padding(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits (..., P) with -inf for what is no token, in place. A GPU is faster with a padded width."""
    logits[..., vocab_size:] = -math.inf
    return logits


class _CrossEntropySum(torch.autograd.Function):
    """F.cross_entropy with reduction="sum"; its backward converts the log-probabilities to the gradient in place.

    Torch fills two more buffers of (N, V): 188 ms against 130 ms at (2048, 8192) on one core, with the backward.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        log_probs = torch.log_softmax(logits, -1, dtype=torch.float32)  # (N, V)
        ctx.save_for_backward(log_probs, labels)
        ctx.logits_dtype = logits.dtype
        return F.nll_loss(log_probs, labels, ignore_index=IGNORED, reduction="sum")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor, None]:
        """d total / d logits = softmax - one-hot. A second backward through the same loss raises an error."""
        log_probs, labels = ctx.saved_tensors
        counted = labels != IGNORED  # (N,)
        gradient = log_probs.exp_()  # (N, V)
        gradient[torch.arange(len(labels), device=labels.device), labels.clamp(min=0)] -= 1
        gradient *= (grad_total * counted).unsqueeze(1)
        return gradient.to(ctx.logits_dtype), None
