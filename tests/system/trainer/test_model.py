"""The decoder: packed documents do not affect each other, and its counts are right."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prime_train import spec
from prime_train.trainer.model.attention import plan_attention
from prime_train.trainer.model.decoder import (
    Decoder,
    ModelConfig,
    build,
    config_of,
    cross_entropy_sum,
    flops_per_token,
)
from prime_train.trainer.model.rotary import rotate, rotations
from tests.unit.trainer.tiny import parameter_count


def config(**changes: object) -> ModelConfig:
    fields: dict[str, object] = {
        "vocab_size": 97,
        "layers": 2,
        "hidden_size": 32,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "mlp_size": 64,
        "rope_theta": 10000.0,
        "norm_eps": 1e-5,
        "tie_embeddings": True,
        "qk_norm": False,
    }
    return ModelConfig(**(fields | changes))  # type: ignore[arg-type]


def loud(config: ModelConfig, seed: int = 0) -> Decoder:
    """A decoder whose weights are large enough for attention to be far from uniform."""
    decoder = build(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.normal_(1.0 if weight.ndim < 2 else 0.0, 0.2, generator=generator)
    return decoder


def packed(lengths: list[int], ctx_tokens: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """One row of documents of these lengths, then padding: tokens, positions and documents, each (1, T)."""
    padding = ctx_tokens - sum(lengths)
    pieces = [*lengths, padding]
    tokens = torch.randint(0, 97, (1, ctx_tokens), generator=torch.Generator().manual_seed(seed))
    tokens[0, ctx_tokens - padding :] = 0
    positions = torch.cat([torch.arange(length) for length in pieces]).unsqueeze(0)
    documents = torch.cat([torch.full((length,), n) for n, length in enumerate(pieces)]).unsqueeze(0)
    return tokens, positions, documents


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    padding=st.integers(0, 6),
    qk_norm=st.booleans(),
    kv_heads=st.sampled_from([1, 2, 4]),
)
def test_a_packed_document_computes_what_it_computes_alone(
    lengths: list[int], padding: int, qk_norm: bool, kv_heads: int
) -> None:
    decoder = loud(config(qk_norm=qk_norm, kv_heads=kv_heads))
    tokens, positions, documents = packed(lengths, sum(lengths) + padding)
    with torch.no_grad():
        together = decoder(tokens, positions, plan_attention(documents))
        start = 0
        for length in lengths:
            piece = slice(start, start + length)
            alone = decoder(tokens[:, piece], positions[:, piece], None)
            torch.testing.assert_close(together[:, piece], alone, rtol=0, atol=1e-5)
            start += length


def test_without_its_mask_a_packed_document_would_differ() -> None:
    decoder = loud(config())
    tokens, positions, documents = packed([6, 6], 12)
    with torch.no_grad():
        masked = decoder(tokens, positions, plan_attention(documents))
        unmasked = decoder(tokens, positions, None)
    assert (masked[:, 6:] - unmasked[:, 6:]).abs().max() > 1e-2


def test_a_document_does_not_see_ahead() -> None:
    decoder = loud(config())
    tokens, positions, _ = packed([12], 12)
    changed = tokens.clone()
    changed[0, 7] += 1
    with torch.no_grad():
        before, after = decoder(tokens, positions, None), decoder(changed, positions, None)
    torch.testing.assert_close(before[:, :7], after[:, :7], rtol=0, atol=0)
    assert (before[:, 7:] - after[:, 7:]).abs().max() > 1e-3


@given(first=st.integers(0, 5000), distance=st.integers(0, 300))
@settings(max_examples=25, deadline=None)
def test_rotated_products_depend_on_distance_alone(first: int, distance: int) -> None:
    generator = torch.Generator().manual_seed(3)
    query, key = (torch.randn(1, 1, 1, 16, generator=generator) for _ in range(2))

    def product(at_query: int, at_key: int) -> Tensor:
        turned_query = rotate(query, *rotations(torch.tensor([[at_query]]), 16, 10000.0))
        turned_key = rotate(key, *rotations(torch.tensor([[at_key]]), 16, 10000.0))
        return (turned_query * turned_key).sum()

    near, far = product(distance, 0), product(first + distance, first)
    torch.testing.assert_close(near, far, rtol=0, atol=5e-3)  # angles of 5000 are exact to 2^-11 in fp32


def test_rotation_turns_pairs_of_the_two_halves() -> None:
    x = torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 1, 4)
    turned = rotate(x, *rotations(torch.tensor([[3]]), 4, 100.0))
    torch.testing.assert_close(turned.flatten(), torch.tensor([math.cos(3), 0.0, math.sin(3), 0.0]))


def test_logits_at_one_position_are_those_of_the_whole() -> None:
    decoder = loud(config())
    tokens = torch.arange(20).view(2, 10)
    positions = torch.arange(10).expand(2, 10)
    with torch.no_grad():
        whole = decoder(tokens, positions, None)
        picked = decoder(tokens, positions, None, torch.tensor([3, 9]))
    torch.testing.assert_close(picked, torch.stack([whole[0, 3], whole[1, 9]]))


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_without_memory(tied: bool) -> None:
    small = config(tie_embeddings=tied, qk_norm=True)
    assert parameter_count(small) == sum(weight.numel() for weight in build(small, 0).parameters())


def test_parameter_count_of_a_published_architecture() -> None:
    """Llama 3.2 1B has 1.24 B parameters: huggingface.co/meta-llama/Llama-3.2-1B, model card."""
    llama = config(
        vocab_size=128256, layers=16, hidden_size=2048, heads=32, kv_heads=8, head_dim=64, mlp_size=8192, rope_theta=5e5
    )
    assert parameter_count(llama) == 1_235_814_400


def test_flops_count_the_head_once_and_an_untied_embedding_not() -> None:
    tied, untied = config(), config(tie_embeddings=False)
    assert flops_per_token(tied, 16) == flops_per_token(untied, 16)
    assert flops_per_token(tied, 16) == 6 * parameter_count(tied) + 12 * 2 * 32 * 16


def test_unset_sizes_are_filled_in() -> None:
    filled = config_of(spec.Model(hidden_size=384, heads=6), vocab_size=8192)
    assert (filled.kv_heads, filled.head_dim, filled.mlp_size) == (6, 64, 1024)
    given_sizes = config_of(spec.Model(hidden_size=96, heads=6, kv_heads=3, head_dim=32, mlp_size=100), vocab_size=300)
    assert (given_sizes.kv_heads, given_sizes.head_dim, given_sizes.mlp_size) == (3, 32, 100)


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = build(config(), 7).state_dict()
    torch.manual_seed(2)
    again, other = build(config(), 7).state_dict(), build(config(), 8).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    build(config(), 7)
    assert torch.equal(before, torch.get_rng_state())


def test_an_untrained_model_knows_nothing() -> None:
    """Its loss is ln(V) and its residual stream does not grow with depth."""
    decoder = build(config(vocab_size=512, layers=8, hidden_size=64, head_dim=16), 0)
    tokens = torch.randint(0, 512, (4, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = decoder(tokens, torch.arange(64).expand(4, 64), None)
    total = cross_entropy_sum(logits[:, :-1], tokens[:, 1:])
    assert float(total / tokens[:, 1:].numel()) == pytest.approx(math.log(512), abs=0.1)


def test_output_projections_start_smaller() -> None:
    decoder = build(config(layers=8, hidden_size=128, head_dim=32, mlp_size=256), 0)
    deviations = {name: float(weight.detach().std()) for name, weight in decoder.named_parameters() if weight.ndim == 2}
    assert deviations["blocks.0.mlp.up.weight"] == pytest.approx(0.02, rel=0.05)
    assert deviations["blocks.0.mlp.down.weight"] == pytest.approx(0.02 / 4, rel=0.05)
    assert deviations["blocks.7.attention.output.weight"] == pytest.approx(0.02 / 4, rel=0.05)


def test_every_parameter_gets_a_gradient() -> None:
    decoder = loud(config(qk_norm=True, tie_embeddings=False))
    tokens, positions, documents = packed([6, 5], 12)
    total = cross_entropy_sum(decoder(tokens, positions, plan_attention(documents)), tokens.roll(-1))
    total.backward()  # type: ignore[no-untyped-call]
    without = [name for name, weight in decoder.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert without == []
