"""The Decoder with a cache of keys and values, for generation. Has no gradients and samples nothing.

It computes what `Decoder.forward` computes, with fewer and larger matrix products: query, key and value of a block
are one product, and so are gate and up. Weights of matrices have the compute type; the residual stream, the norms and
the positions are fp32, as they are under autocast in the trainer.

Rows and positions are padded, so that the logits of a row do not depend on the rows beside it: a matrix product rounds
a row differently in a product of fewer than 4 rows, and an attention a sum of fewer than 32 positions (measured, torch
2.13 and MKL 2024.2, fp32, 1 and 2 threads). A run that is resumed then computes the same as one that was not stopped.

Shapes: B sequences, T positions, S slots, V vocabulary, C width of the residual stream, D width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from prime_train.trainer.attention import attend
from prime_train.trainer.model import ModelConfig, parameter_shapes, rotate, rotations

_ROWS = 16  # two threads halve a product
_POSITIONS = 32


@dataclass(frozen=True, slots=True)
class _Block:
    """The weights of a block; the matrices of one input are joined."""

    attention_norm: Tensor  # (C,)
    query_key_value: Tensor  # ((heads + 2 x kv_heads) x D, C)
    head_norms: Tensor | None  # (heads + kv_heads, D): the gain of the query norm or of the key norm for each head
    output: Tensor  # (C, heads x D)
    mlp_norm: Tensor  # (C,)
    gate_up: Tensor  # (2 x mlp_size, C)
    down: Tensor  # (C, mlp_size)
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
        cos, sin = rotations(positions, config.head_dim, config.rope_theta)  # (1, T, 1, D)
        self._cos, self._sin = cos.squeeze(0), sin.squeeze(0)  # (T, 1, D)

        def gain(*shape: int) -> Tensor:
            return torch.empty(shape, device=device)

        def matrix(*shape: int) -> Tensor:
            return torch.empty(shape, device=device, dtype=dtype)

        width, head_dim = config.hidden_size, config.head_dim
        self._embedding = gain(config.vocab_size, width)
        self._norm = gain(width)
        self._head = matrix(config.vocab_size, width)
        self._blocks = [
            _Block(
                gain(width),
                matrix(sum(self._heads) * head_dim, width),
                gain(config.heads + config.kv_heads, head_dim) if config.qk_norm else None,
                matrix(width, config.heads * head_dim),
                gain(width),
                matrix(2 * config.mlp_size, width),
                matrix(width, config.mlp_size),
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
        yield "norm.weight", self._norm
        yield "embedding.weight" if config.tie_embeddings else "head.weight", self._head
        heads = [count * config.head_dim for count in self._heads]
        for number, block in enumerate(self._blocks):
            prefix = f"blocks.{number}"
            yield f"{prefix}.attention_norm.weight", block.attention_norm
            yield f"{prefix}.mlp_norm.weight", block.mlp_norm
            joined = block.query_key_value.split_with_sizes(heads)
            for name, part in zip(("query", "key", "value"), joined, strict=True):
                yield f"{prefix}.attention.{name}.weight", part
            yield f"{prefix}.attention.output.weight", block.output
            for name, part in zip(("gate", "up"), block.gate_up.chunk(2), strict=True):
                yield f"{prefix}.mlp.{name}.weight", part
            yield f"{prefix}.mlp.down.weight", block.down
            if block.head_norms is not None:
                yield f"{prefix}.attention.query_norm.weight", block.head_norms[: config.heads]
                yield f"{prefix}.attention.key_norm.weight", block.head_norms[config.heads :]

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[Sequence[int]]) -> Tensor:
        """Logits (B, V) fp32 after each of B prompts, whose keys and values fill all slots of `slots[b]`.

        Shorter prompts are padded at their end, which changes nothing before it because the mask is causal.
        """
        lengths = [len(prompt) for prompt in prompts]
        longest, device = round_up(max(lengths), _POSITIONS), self._norm.device
        padded = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
        x = F.embedding(torch.tensor(padded, device=device), self._embedding)  # (B, T, C)
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
        device, rows = self._norm.device, round_up(len(tokens), _ROWS)
        padding = [0] * (rows - len(tokens))  # in slots that hold nothing
        positions = torch.tensor([*lengths, *padding], device=device)  # (B,)
        past = torch.arange(round_up(max(lengths) + 1, _POSITIONS), device=device)  # (T,)
        mask = torch.zeros(rows, 1, 1, len(past), device=device, dtype=self._head.dtype)  # (B, 1, 1, T)
        mask.masked_fill_((past > positions.unsqueeze(1))[:, None, None], -torch.inf)
        slots = torch.arange(rows, device=device)  # (B,)
        cos, sin = self._cos[positions], self._sin[positions]  # (B, 1, D)
        x = F.embedding(torch.tensor([*tokens, *padding], device=device), self._embedding)  # (B, C)
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
        normed = F.rms_norm(x, (config.hidden_size,), block.attention_norm, config.norm_eps)
        joined = F.linear(normed.to(block.output.dtype), block.query_key_value)
        joined = joined.view(*x.shape[:-1], -1, config.head_dim)  # (..., heads + 2 x kv_heads, D)
        rotated = joined[..., : config.heads + config.kv_heads, :]
        if block.head_norms is not None:
            rotated = F.rms_norm(rotated.float(), (config.head_dim,), None, config.norm_eps) * block.head_norms
        rotated = rotate(rotated, cos, sin).to(joined.dtype)
        query, key = rotated.split_with_sizes(self._heads[:2], -2)
        return query, key, joined[..., config.heads + config.kv_heads :, :]

    def _finish(self, block: _Block, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of a block after the attention: (..., C)."""
        config, dtype = self._config, block.output.dtype
        x = x + F.linear(mixed.flatten(-2), block.output)
        normed = F.rms_norm(x, (config.hidden_size,), block.mlp_norm, config.norm_eps)
        gate, up = F.linear(normed.to(dtype), block.gate_up).chunk(2, -1)  # (..., mlp_size)
        return x + F.linear(F.silu(gate) * up, block.down)

    def _logits(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, 0, -len(x) % _ROWS))  # (B rounded up, C)
        normed = F.rms_norm(padded, (self._config.hidden_size,), self._norm, self._config.norm_eps)
        return F.linear(normed.to(self._head.dtype), self._head)[: len(x)].float()

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` keys and values of one slot to another."""
        for block in self._blocks:
            block.cache[:, target, :, :length] = block.cache[:, source, :, :length]


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
