"""The Decoder with a cache of keys and values, for generation. Has no gradients and samples nothing.

It computes what `Decoder.forward` computes, with fewer and larger matrix products: query, key and value of a block
are one product, and so are gate and up. Weights of matrices have the compute type; the residual stream, the norms and
the positions are fp32, as they are under autocast in the trainer. The experts of a block are one wide MLP, whose inner
numbers are multiplied by the weights of the experts, most of which are 0: more operations, and a token's logits depend
on no other token.

Rows and positions are padded, so that the logits of a row do not depend on the rows beside it: a matrix product rounds
a row differently in a product of fewer than 4 rows, and an attention a sum of fewer than 32 positions (measured, torch
2.13 and MKL 2024.2, fp32, 1 and 2 threads). A run that is resumed then computes the same as one that was not stopped.

Shapes: B sequences, T positions, S slots, V vocabulary, C width of the residual stream, D width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from prime_train.trainer.model.attention import attend
from prime_train.trainer.model.decoder import ModelConfig, parameter_shapes
from prime_train.trainer.model.experts import choose
from prime_train.trainer.model.rotary import rotate, rotations

_ROWS = 16  # two threads halve a product
_POSITIONS = 32


class _Affine(NamedTuple):
    weight: Tensor
    bias: Tensor | None = None


class _Mlp(NamedTuple):
    gate_up: _Affine  # (2 x mlp_size, C), of experts in pairs of gate and up; of GPT-2 (mlp_size, C)
    down: _Affine  # (C, mlp_size)


@dataclass(frozen=True, slots=True)
class _Block:
    """The weights of a block; the matrices of one input are joined."""

    attention_norm: _Affine  # (C,)
    query_key_value: _Affine  # ((heads + 2 x kv_heads) x D, C)
    head_norms: Tensor | None  # (heads + kv_heads, D): the gain of the query norm or of the key norm for each head
    output: _Affine  # (C, heads x D)
    mlp_norm: _Affine  # (C,)
    mlp: _Mlp
    router: _Affine | None  # (experts, C), and the balancing biases
    shared: _Mlp | None  # of the shared experts
    cache: Tensor  # (2, S, kv_heads, T, D): keys, then values


class CachedDecoder:
    """Weights, and the keys and values of up to S sequences of up to T tokens."""

    def __init__(
        self,
        config: ModelConfig,
        slots: int,
        ctx_tokens: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._config = config
        self._shapes = parameter_shapes(config)
        self._heads = (config.heads, config.kv_heads, config.kv_heads)
        slots, ctx_tokens = round_up(slots, _ROWS), round_up(ctx_tokens, _POSITIONS)
        positions = torch.arange(ctx_tokens, device=device).unsqueeze(0)
        cos, sin = rotations(positions, config.head_dim, config.rope_theta, config.rope_scaling)  # (1, T, 1, D)
        self._cos, self._sin = cos.squeeze(0), sin.squeeze(0)  # (T, 1, D)

        def gain(*shape: int) -> Tensor:
            return torch.empty(shape, device=device)

        def norm() -> _Affine:
            return _Affine(gain(width), gain(width) if config.layer_norm else None)

        def matrix(outer: int, inner: int, *, biased: bool = False) -> _Affine:
            weight = torch.empty(outer, inner, device=device, dtype=dtype)
            return _Affine(weight, torch.empty(outer, device=device, dtype=dtype) if biased else None)

        def mlp(size: int) -> _Mlp:
            return _Mlp(
                matrix((2 if config.gated_mlp else 1) * size, width, biased=not config.gated_mlp),
                matrix(width, size, biased=not config.gated_mlp),
            )

        def router() -> _Affine:
            return _Affine(gain(config.experts, width), gain(config.experts) if config.router == "sigmoid" else None)

        width, head_dim = config.hidden_size, config.head_dim
        self._embedding = gain(config.vocab_size, width)
        self._positions = gain(config.learned_positions, width) if config.learned_positions else None
        self._norm = norm()
        self._head = matrix(config.vocab_size, width).weight
        self._blocks = [
            _Block(
                norm(),
                matrix(sum(self._heads) * head_dim, width, biased=config.biases != "none"),
                gain(config.heads + config.kv_heads, head_dim) if config.qk_norm else None,
                matrix(width, config.heads * head_dim, biased=config.biases == "all"),
                norm(),
                mlp(config.experts * config.expert_mlp_size or config.mlp_size),
                router() if config.experts else None,
                mlp(config.shared_mlp_size) if config.shared_experts else None,
                # Zeros, because a masked position must be finite: not a number times 0 is not a number.
                torch.zeros(2, slots, config.kv_heads, ctx_tokens, head_dim, device=device, dtype=dtype),
            )
            for _ in range(config.layers)
        ]

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy all weights of a Decoder. Raises ValueError if a name or a shape is wrong; then nothing is copied."""
        for name, shape in self._shapes.items():
            found = tuple(weights[name].shape) if name in weights else None
            if found != shape:
                raise ValueError(f"{name} is {found or 'missing'}, expected {shape}")
        for name, part in self._list_parts():
            part.copy_(weights[name].expand(part.shape))

    def _list_parts(self) -> Iterator[tuple[str, Tensor]]:
        """Each weight's name in the Decoder, and the part of a tensor here that holds it."""
        config = self._config
        yield "embedding.weight", self._embedding
        if self._positions is not None:
            yield "positions.weight", self._positions
        yield from _list_affine("norm", self._norm)
        yield "embedding.weight" if config.tie_embeddings else "head.weight", self._head
        heads = [count * config.head_dim for count in self._heads]
        for number, block in enumerate(self._blocks):
            prefix = f"blocks.{number}"
            yield from _list_affine(f"{prefix}.attention_norm", block.attention_norm)
            yield from _list_affine(f"{prefix}.mlp_norm", block.mlp_norm)
            names = [f"{prefix}.attention.{name}" for name in ("query", "key", "value")]
            yield from _list_joined(names, block.query_key_value, heads)
            yield from _list_affine(f"{prefix}.attention.output", block.output)
            if block.head_norms is not None:
                yield f"{prefix}.attention.query_norm.weight", block.head_norms[: config.heads]
                yield f"{prefix}.attention.key_norm.weight", block.head_norms[config.heads :]
            if block.router is None:
                yield from self._list_mlp(f"{prefix}.mlp", block.mlp)
            else:
                yield from self._list_experts(f"{prefix}.mlp", block)

    def _list_mlp(self, prefix: str, mlp: _Mlp) -> Iterator[tuple[str, Tensor]]:
        names = [f"{prefix}.{name}" for name in (("gate", "up") if self._config.gated_mlp else ("up",))]
        size = len(mlp.gate_up.weight) // len(names)
        yield from _list_joined(names, mlp.gate_up, [size] * len(names))
        yield from _list_affine(f"{prefix}.down", mlp.down)

    def _list_experts(self, prefix: str, block: _Block) -> Iterator[tuple[str, Tensor]]:
        """Expert i has the inner numbers i x expert_mlp_size to (i + 1) x expert_mlp_size of the wide MLP."""
        assert block.router is not None
        yield f"{prefix}.router.weight", block.router.weight
        if block.router.bias is not None:
            yield f"{prefix}.router.balance", block.router.bias
        experts, width = self._config.experts, self._config.hidden_size
        yield f"{prefix}.experts.gate_up", block.mlp.gate_up.weight.view(experts, -1, width)
        yield f"{prefix}.experts.down", block.mlp.down.weight.view(width, experts, -1).transpose(0, 1)
        if block.shared is not None:
            yield from self._list_mlp(f"{prefix}.shared", block.shared)

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[Sequence[int]]) -> Tensor:
        """Logits (B, V) fp32 after each of B prompts, whose keys and values fill all slots of `slots[b]`.

        Shorter prompts are padded at their end, which changes nothing before it because the mask is causal.
        """
        lengths = [len(prompt) for prompt in prompts]
        longest, device = round_up(max(lengths), _POSITIONS), self._head.device
        padded = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
        x = self._embed(torch.tensor(padded, device=device), torch.arange(longest, device=device))  # (B, T, C)
        cos, sin = self._cos[:longest], self._sin[:longest]  # (T, 1, D)
        filled = torch.tensor([slot for several in slots for slot in several], device=device)  # (filled,)
        source = torch.tensor([row for row, several in enumerate(slots) for _ in several], device=device)  # (filled,)
        for block in self._blocks:
            query, key, value = self._project(block, x, cos, sin)  # (B, T, heads or kv_heads, D)
            kept = torch.stack((key, value)).transpose(2, 3)  # (2, B, kv_heads, T, D)
            block.cache[:, filled, :, :longest] = kept[:, source]
            mixed = attend(query, key, value, None)  # (B, T, heads, D)
            x = self._finish(block, x, mixed)
        last = torch.tensor([length - 1 for length in lengths], device=device)  # (B,)
        ends = x[torch.arange(len(lengths), device=device), last]  # (B, C)
        return self._logits(F.pad(ends, (0, 0, 0, -len(lengths) % _ROWS)))[: len(lengths)]

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """Logits (B, V) fp32 after one more token in each of the slots 0 to B - 1, which hold `lengths` tokens."""
        device, rows = self._head.device, round_up(len(tokens), _ROWS)
        padding = [0] * (rows - len(tokens))  # in slots that hold nothing
        positions = torch.tensor([*lengths, *padding], device=device)  # (B,)
        past = torch.arange(round_up(max(lengths) + 1, _POSITIONS), device=device)  # (T,)
        mask = torch.zeros(rows, 1, 1, len(past), device=device, dtype=self._head.dtype)  # (B, 1, 1, T)
        mask.masked_fill_((past > positions.unsqueeze(1))[:, None, None], -torch.inf)
        slots = torch.arange(rows, device=device)  # (B,)
        cos, sin = self._cos[positions], self._sin[positions]  # (B, 1, D)
        x = self._embed(torch.tensor([*tokens, *padding], device=device), positions)  # (B, C)
        for block in self._blocks:
            query, key, value = self._project(block, x, cos, sin)  # (B, heads or kv_heads, D)
            block.cache[:, slots, :, positions] = torch.stack((key, value)).transpose(0, 1)
            keys, values = block.cache[:, :rows, :, : len(past)]  # (B, kv_heads, T, D)
            # The heads that share a key count as positions of the query, so that no key is repeated.
            grouped = query.view(
                rows, self._config.kv_heads, -1, self._config.head_dim
            )  # (B, kv_heads, heads / kv_heads, D)
            if alone := grouped.shape[2] == 1:
                grouped = grouped.expand(-1, -1, 2, -1)  # of one query, two threads round the rows differently
            mixed = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
            x = self._finish(block, x, (mixed[:, :, :1] if alone else mixed).flatten(1, 2))
        return self._logits(x)[: len(tokens)]

    def _project(self, block: _Block, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated query and key, and value: (..., C) to (..., heads or kv_heads, D)."""
        config = self._config
        normed = self._normalise(x, block.attention_norm)
        joined = F.linear(normed.to(self._head.dtype), *block.query_key_value)
        joined = joined.view(*x.shape[:-1], -1, config.head_dim)  # (..., heads + 2 x kv_heads, D)
        rotated = joined[..., : config.heads + config.kv_heads, :]
        if block.head_norms is not None:
            rotated = F.rms_norm(rotated.float(), (config.head_dim,), None, config.norm_eps) * block.head_norms
        if self._positions is None:
            rotated = rotate(rotated, cos, sin)
        rotated = rotated.to(joined.dtype)
        query, key = rotated.split_with_sizes(self._heads[:2], -2)
        return query, key, joined[..., config.heads + config.kv_heads :, :]

    def _finish(self, block: _Block, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of a block after the attention: (..., C)."""
        x = x + F.linear(mixed.flatten(-2), *block.output)
        normed = self._normalise(x, block.mlp_norm)
        weights = None if block.router is None else self._weigh_experts(normed, block.router)  # (..., experts)
        out = x + self._compute_mlp(block.mlp, normed, weights)
        return out if block.shared is None else out + self._compute_mlp(block.shared, normed)

    def _compute_mlp(self, mlp: _Mlp, normed: Tensor, weights: Tensor | None = None) -> Tensor:
        """(..., C); with `weights` each expert's part of the inner numbers is multiplied by its weight."""
        joined = F.linear(normed.to(self._head.dtype), *mlp.gate_up)
        if weights is not None:
            gate, up = joined.view(*weights.shape, -1).chunk(2, -1)  # (..., experts, expert_mlp_size)
            inner = (F.silu(gate) * up * weights.unsqueeze(-1)).flatten(-2)
        elif self._config.gated_mlp:
            gate, up = joined.chunk(2, -1)  # (..., mlp_size)
            inner = F.silu(gate) * up
        else:
            inner = F.gelu(joined, approximate="tanh")
        return F.linear(inner, *mlp.down)

    def _weigh_experts(self, normed: Tensor, router: _Affine) -> Tensor:
        """The weight of every expert, 0 of those that are not chosen: (..., experts)."""
        logits = F.linear(normed, router.weight)  # (..., experts) fp32
        weights, chosen = choose(logits, router.bias, self._config)  # (..., experts_per_token)
        return torch.zeros_like(logits).scatter_(-1, chosen, weights).to(self._head.dtype)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(..., C) fp32. Padding may be beyond the table of positions."""
        x = F.embedding(tokens, self._embedding)
        if self._positions is None:
            return x
        return x + F.embedding(positions.clamp(max=len(self._positions) - 1), self._positions)

    def _normalise(self, x: Tensor, norm: _Affine) -> Tensor:
        shape, eps = (self._config.hidden_size,), self._config.norm_eps
        if self._config.layer_norm:
            return F.layer_norm(x, shape, *norm, eps)
        return F.rms_norm(x, shape, norm.weight, eps)

    def _logits(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, 0, -len(x) % _ROWS))  # (B rounded up, C)
        normed = self._normalise(padded, self._norm)
        return F.linear(normed.to(self._head.dtype), self._head)[: len(x)].float()

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` keys and values of one slot to another."""
        for block in self._blocks:
            block.cache[:, target, :, :length] = block.cache[:, source, :, :length]


def _list_affine(name: str, affine: _Affine) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", affine.weight
    if affine.bias is not None:
        yield f"{name}.bias", affine.bias


def _list_joined(names: Sequence[str], joined: _Affine, sizes: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """The layers of `names`, with `sizes` outputs each, of the layer that joins them."""
    for kind, tensor in zip(("weight", "bias"), joined, strict=True):
        if tensor is not None:
            for name, part in zip(names, tensor.split_with_sizes(list(sizes)), strict=True):
                yield f"{name}.{kind}", part


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
