"""The Decoder with a cache of keys and values, for generation. Has no gradients and samples nothing.

It computes what `Decoder.forward` computes, with fewer and larger matrix products: query, key and value of a block
are one product, and so are gate and up. Weights of matrices have the compute type; the residual stream, the norms and
the positions are fp32, as they are under autocast in the trainer. The experts of a block are one wide MLP, whose inner
numbers are multiplied by the weights of the experts, most of which are 0: more operations, and a token's logits depend
on no other token.

In fp32 on a CPU the logits of a row do not depend on the rows beside it (`exact_rows.py`), so a run that is resumed
computes the same as one that was not stopped.

Shapes: B sequences, T positions, S slots, V vocabulary, C width of the residual stream, D width of a head, G heads that
share a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from prime_train.trainer.model.attention import attend
from prime_train.trainer.model.decoder import ModelConfig, parameter_shapes
from prime_train.trainer.model.experts import choose
from prime_train.trainer.model.rotary import rotate, rotations
from prime_train.trainer.rl.engines.exact_rows import (
    HAS_ONEDNN,
    PADDED,
    PADDED_PROMPT,
    WIDE,
    Affine,
    attend_exactly,
    pad_positions,
    pad_rows,
    round_up,
    scale_exactly,
)


class _Stream(NamedTuple):
    """The residual stream, fp32."""

    x: Tensor  # (..., C)
    whole: Tensor  # (..., C + 1): x, and a number for `scale_exactly`; x itself where other norms are used


class _Mlp(NamedTuple):
    gate_up: Affine  # (2 x mlp_size, C), of experts in pairs of gate and up; of GPT-2 (mlp_size, C)
    down: Affine  # (C, mlp_size)


@dataclass(frozen=True, slots=True)
class _Block:
    """The weights of a block; the matrices of one input are joined."""

    attention_norm: Affine  # (C,)
    query_key_value: Affine  # ((heads + 2 x kv_heads) x D, C)
    head_norms: Tensor | None  # (heads + kv_heads, D): the gain of the query norm or of the key norm for each head
    output: Affine  # (C, heads x D)
    mlp_norm: Affine  # (C,)
    mlp: _Mlp
    router: Affine | None  # (experts, C)
    balance: Tensor | None  # (experts,)
    shared: _Mlp | None  # of the shared experts


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
        self.device, self._dtype, self._config = torch.device(device), dtype, config
        self._shapes = parameter_shapes(config)
        self._is_exact = self.device.type == "cpu" and dtype == torch.float32
        self._is_packed = self._is_exact and HAS_ONEDNN and config.hidden_size >= WIDE
        self._scales_exactly = self._is_exact and not config.layer_norm
        ctx_tokens = round_up(ctx_tokens, PADDED)
        self._range = torch.arange(ctx_tokens, device=device)  # (T,): 0, 1, ...
        angles = rotations(self._range[None], config.head_dim, config.rope_theta, config.rope_scaling)
        self._rotations = torch.cat(angles).transpose(0, 1).contiguous()  # (T, 2, 1, D)
        # Where the keys or values of a slot and a head begin among the positions of a cache: (S, 2 x kv_heads)
        begins = torch.arange(0, 2 * slots * config.kv_heads * ctx_tokens, ctx_tokens, device=device)
        self._begins = begins.view(2, slots, config.kv_heads).transpose(0, 1).flatten(1)

        def gain(*shape: int) -> Tensor:
            return torch.empty(shape, device=device)

        def norm() -> Affine:
            return Affine(gain(width), gain(width) if config.layer_norm else None)

        def matrix(outer: int, inner: int, *, biased: bool = False, dtype: torch.dtype = dtype) -> Affine:
            bias = torch.empty(outer, device=device, dtype=dtype) if biased else None
            if self._is_packed:
                return Affine(torch.empty(outer, inner).to_mkldnn(), bias)
            # MKL multiplies few rows by a matrix that lies transposed in up to 20 % less time.
            return Affine(torch.empty(inner, outer, device=device, dtype=dtype).t(), bias)

        def mlp(size: int) -> _Mlp:
            return _Mlp(
                matrix((2 if config.gated_mlp else 1) * size, width, biased=not config.gated_mlp),
                matrix(width, size, biased=not config.gated_mlp),
            )

        width, head_dim = config.hidden_size, config.head_dim
        whole = width + 1 if self._scales_exactly else width  # of a row of _Stream
        self._embedding = gain(config.vocab_size, whole)
        self._positions = gain(config.learned_positions, whole) if config.learned_positions else None
        self._norm = norm()
        self._head = matrix(config.vocab_size, width)
        self._blocks = [
            _Block(
                norm(),
                matrix((config.heads + 2 * config.kv_heads) * head_dim, width, biased=config.biases != "none"),
                gain(config.heads + config.kv_heads, head_dim) if config.qk_norm else None,
                matrix(width, config.heads * head_dim, biased=config.biases == "all"),
                norm(),
                mlp(config.experts * config.expert_mlp_size or config.mlp_size),
                matrix(config.experts, width, dtype=torch.float32) if config.experts else None,
                gain(config.experts) if config.experts and config.router == "sigmoid" else None,
                mlp(config.shared_mlp_size) if config.shared_experts else None,
            )
            for _ in range(config.layers)
        ]
        # Keys, then values, of each layer. Zeros, because not a number at a masked position would stay one.
        shape = (config.layers, 2, slots, config.kv_heads, ctx_tokens, head_dim)
        self._cache = torch.zeros(shape, device=device, dtype=dtype)  # (layers, 2, S, kv_heads, T, D)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy all weights of a Decoder. Raises ValueError if a name or a shape is wrong; then nothing is copied."""
        for name, shape in self._shapes.items():
            found = tuple(weights[name].shape) if name in weights else None
            if found != shape:
                raise ValueError(f"{name} is {found or 'missing'}, expected {shape}")
        width = self._config.hidden_size
        if self._scales_exactly:
            self._embedding[:, width] = (width * self._config.norm_eps) ** 0.5
        self._embedding[:, :width] = weights["embedding.weight"]
        if self._positions is not None:
            self._positions[:, width:] = 0
            self._positions[:, :width] = weights["positions.weight"]
        self._load_norm(weights, "norm", self._norm)
        self._head.load(weights, "embedding" if self._config.tie_embeddings else "head")
        for number, block in enumerate(self._blocks):
            self._load_block(weights, f"blocks.{number}", block)

    def _load_block(self, weights: Mapping[str, Tensor], prefix: str, block: _Block) -> None:
        attention = f"{prefix}.attention"
        self._load_norm(weights, f"{prefix}.attention_norm", block.attention_norm)
        block.query_key_value.load(weights, *(f"{attention}.{name}" for name in ("query", "key", "value")))
        block.output.load(weights, f"{attention}.output")
        self._load_norm(weights, f"{prefix}.mlp_norm", block.mlp_norm)
        if block.head_norms is not None:
            query_gain, key_gain = (weights[f"{attention}.{name}_norm.weight"] for name in ("query", "key"))  # (D,)
            gains = [query_gain.expand(self._config.heads, -1), key_gain.expand(self._config.kv_heads, -1)]
            torch.cat(gains, out=block.head_norms)
        if block.router is None:
            self._load_mlp(weights, f"{prefix}.mlp", block.mlp)
            return
        block.router.load(weights, f"{prefix}.mlp.router")
        if block.balance is not None:
            block.balance.copy_(weights[f"{prefix}.mlp.router.balance"])
        # Expert i has the inner numbers i x expert_mlp_size to (i + 1) x expert_mlp_size of the wide MLP.
        block.mlp.gate_up.join([weights[f"{prefix}.mlp.experts.gate_up"].flatten(0, 1)])
        block.mlp.down.join([weights[f"{prefix}.mlp.experts.down"].transpose(0, 1).flatten(1)])
        if block.shared is not None:
            self._load_mlp(weights, f"{prefix}.mlp.shared", block.shared)

    def _load_mlp(self, weights: Mapping[str, Tensor], prefix: str, mlp: _Mlp) -> None:
        names = ("gate", "up") if self._config.gated_mlp else ("up",)
        mlp.gate_up.load(weights, *(f"{prefix}.{name}" for name in names))
        mlp.down.load(weights, f"{prefix}.down")

    def _load_norm(self, weights: Mapping[str, Tensor], name: str, norm: Affine) -> None:
        norm.load(weights, name)
        if self._scales_exactly:
            norm.weight.mul_(self._config.hidden_size**0.5)

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[Sequence[int]]) -> Tensor:
        """Logits (B, V) fp32 after each of B prompts, whose keys and values fill all slots of `slots[b]`.

        Shorter prompts are padded at their end, which changes nothing before it because the mask is causal. But the
        attention may round a prompt differently when it is padded to another multiple of PADDED_PROMPT.
        """
        lengths, heads, kv_heads = [len(prompt) for prompt in prompts], self._config.heads, self._config.kv_heads
        longest, device = round_up(max(lengths), PADDED_PROMPT), self.device
        padded = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
        stream = self._embed(torch.tensor(padded, device=device), self._range[:longest])  # (B, T, C)
        cos, sin = self._rotations[:longest].unbind(1)  # (T, 1, D)
        filled = torch.tensor([slot for several in slots for slot in several], device=device)  # (filled,)
        source = torch.tensor([row for row, several in enumerate(slots) for _ in several], device=device)  # (filled,)
        for block, cache in zip(self._blocks, self._cache.unbind(), strict=True):
            joined = self._project(block, stream, cos, sin)  # (B, T, heads + 2 x kv_heads, D)
            query, key, value = joined.split_with_sizes([heads, kv_heads, kv_heads], 2)
            for kept, of_slots in zip((key, value), cache, strict=True):
                of_slots[filled, :, :longest] = kept.transpose(1, 2)[source]  # (filled, kv_heads, T, D)
            self._finish(block, stream, attend(query, key, value, None).flatten(2))
        last = torch.tensor([length - 1 for length in lengths], device=device)  # (B,)
        ends = stream.whole[torch.arange(len(lengths), device=device), last]  # (B, C)
        return self._logits(self._open(pad_rows(ends, self._least_rows())))[: len(lengths)]

    def decode(self, tokens: Tensor, positions: Tensor, longest: int) -> Tensor:
        """Logits (B, V) fp32 after one more token in each of the slots 0 to B - 1.

        `tokens` (B,) and their `positions` (B,) below `longest` are on the device. The host waits for nothing.
        """
        heads, kv_heads, head_dim = self._config.heads, self._config.kv_heads, self._config.head_dim
        rows, longest, least = len(tokens), pad_positions(longest, head_dim), self._least_rows()
        padded = pad_rows(positions, least)  # (R,), at least B
        stream = self._embed(pad_rows(tokens, least), padded)  # (R, C)
        cos, sin = self._rotations.index_select(0, padded).unbind(1)  # (R, 1, D)
        places = (self._begins[:rows] + positions.unsqueeze(1)).flatten()  # (B x 2 x kv_heads,)
        hidden = self._range[:longest] > positions.view(rows, 1, 1, 1)  # (B, 1, 1, T)
        mask = torch.zeros(hidden.shape, device=self.device, dtype=self._dtype).masked_fill_(hidden, -torch.inf)
        caches = self._cache.flatten(1, -2).unbind()  # (2 x S x kv_heads x T, D) of each layer
        read = self._cache[:, :, :rows, :, :longest]  # (layers, 2, B, kv_heads, T, D)
        if self._is_exact:
            read, mask = read.flatten(2, 3), mask.expand(-1, kv_heads, -1, -1).flatten(0, 1)  # B x kv_heads as one
            mixed = torch.zeros(len(padded), heads * head_dim)  # (R, heads x D)
            answers = mixed[:rows].view(rows * kv_heads, -1, head_dim)  # (B x kv_heads, G, D)
        for block, cache, (keys, values) in zip(self._blocks, caches, read.unbind(), strict=True):
            joined = self._project(block, stream, cos, sin)[:rows]  # (B, heads + 2 x kv_heads, D)
            query, kept = joined.split_with_sizes([heads, 2 * kv_heads], 1)
            cache.index_copy_(0, places, kept.flatten(0, 1))
            # The heads that share a key count as positions of the query, so that no key is repeated.
            if self._is_exact:
                attend_exactly(query.reshape(answers.shape), keys, values, mask, answers)
            else:
                grouped = query.view(rows, kv_heads, -1, head_dim)  # (B, kv_heads, G, D)
                mixed = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
                mixed = pad_rows(mixed.flatten(1), least)  # (R, heads x D)
            self._finish(block, stream, mixed)
        return self._logits(stream)[:rows]

    def _least_rows(self) -> int:
        """A product of rows has a multiple of it."""
        return 4 * torch.get_num_threads() if self.device.type == "cpu" and not self._is_packed else 1

    def _project(self, block: _Block, stream: _Stream, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated queries and keys, and values: (..., heads + 2 x kv_heads, D)."""
        config, x = self._config, stream.x
        joined = block.query_key_value.multiply(self._normalise(stream, block.attention_norm).to(self._dtype))
        joined = joined.view(*x.shape[:-1], -1, config.head_dim)  # (..., heads + 2 x kv_heads, D)
        rotated = joined[..., : config.heads + config.kv_heads, :]  # in place, so that keys stay beside their values
        turned = rotated
        if block.head_norms is not None:
            turned = F.rms_norm(rotated.float(), (config.head_dim,), None, config.norm_eps) * block.head_norms
        if self._positions is None:
            rotate(turned, cos, sin, out=rotated)
        elif turned is not rotated:
            rotated.copy_(turned)
        return joined

    def _finish(self, block: _Block, stream: _Stream, mixed: Tensor) -> None:
        """Add the rest of a block, after the attention (..., heads x D), to the residual stream."""
        stream.x.add_(block.output.multiply(mixed))
        normed = self._normalise(stream, block.mlp_norm)
        weights = None if block.router is None else self._weigh_experts(block, normed, block.router)  # (..., experts)
        stream.x.add_(self._compute_mlp(block.mlp, normed, weights))
        if block.shared is not None:
            stream.x.add_(self._compute_mlp(block.shared, normed))

    def _compute_mlp(self, mlp: _Mlp, normed: Tensor, weights: Tensor | None = None) -> Tensor:
        """(..., C); with `weights` each expert's part of the inner numbers is multiplied by its weight."""
        joined = mlp.gate_up.multiply(normed.to(self._dtype))
        if weights is not None:
            gate, up = joined.view(*weights.shape, -1).chunk(2, -1)  # (..., experts, expert_mlp_size)
            inner = (F.silu(gate) * up * weights.unsqueeze(-1)).flatten(-2)
        elif self._config.gated_mlp:
            gate, up = joined.chunk(2, -1)  # (..., mlp_size)
            inner = F.silu(gate).mul_(up)
        else:
            inner = F.gelu(joined, approximate="tanh")
        return mlp.down.multiply(inner)

    def _weigh_experts(self, block: _Block, normed: Tensor, router: Affine) -> Tensor:
        """The weight of every expert, 0 of those that are not chosen: (..., experts)."""
        logits = router.multiply(normed)  # (..., experts) fp32
        # torch computes 16 sigmoids together (AVX2), and those that are left by other code, which rounds differently.
        whole = logits if logits.ndim > 2 else pad_rows(logits, 16)
        weights, chosen = choose(whole, block.balance, self._config)  # (..., experts_per_token)
        spread = torch.zeros_like(whole).scatter_(-1, chosen, weights)  # (..., experts)
        return spread[: len(logits)].to(self._dtype)

    def _embed(self, tokens: Tensor, positions: Tensor) -> _Stream:
        """Padding may be beyond the table of positions."""
        x = F.embedding(tokens, self._embedding)
        if self._positions is not None:
            x += F.embedding(positions.clamp(max=len(self._positions) - 1), self._positions)
        return self._open(x)

    def _open(self, whole: Tensor) -> _Stream:
        return _Stream(whole[..., : self._config.hidden_size], whole)

    def _normalise(self, stream: _Stream, norm: Affine) -> Tensor:
        """(..., C) fp32."""
        shape, eps = (self._config.hidden_size,), self._config.norm_eps
        if self._scales_exactly:
            return scale_exactly(stream.whole, stream.x, norm.weight)
        if self._config.layer_norm:
            return F.layer_norm(stream.x, shape, norm.weight, norm.bias, eps)
        return F.rms_norm(stream.x, shape, norm.weight, eps)

    def _logits(self, stream: _Stream) -> Tensor:
        return self._head.multiply(self._normalise(stream, self._norm).to(self._dtype)).float()

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` keys and values of one slot to another."""
        self._cache[:, :, target, :, :length] = self._cache[:, :, source, :, :length]
