"""What one token meets in a model, against counts made by hand."""

from __future__ import annotations

import pytest

from prime_train.estimate.time.token_flops import (
    active_expert_parameters,
    adapter_features,
    adapter_parameters,
    attention_flops,
    linear_parameters,
)
from tests.unit.estimate.step_cases import LLAMA_1B, OLMO_7B, QWEN_30B, dense


def test_linear_weights_are_all_but_embedding_and_norms() -> None:
    # Llama-3.2-1B: 16 x (2 x 2048 x 2048 + 2 x 2048 x 512 + 3 x 2048 x 8192); its 1,235,814,400 less the embedding
    # of 128256 x 2048 and 33 norms of 2048.
    assert linear_parameters(LLAMA_1B) == 1_235_814_400 - 128256 * 2048 - 33 * 2048


def test_a_token_visits_a_few_experts() -> None:
    # 48 layers x 8 of 128 experts x three matrices of 2048 x 768; "A3B": some 3.0 B with attention and the head.
    assert active_expert_parameters(QWEN_30B) == 48 * 8 * 3 * 2048 * 768
    active = linear_parameters(QWEN_30B) + active_expert_parameters(QWEN_30B) + 151936 * 2048
    assert active == pytest.approx(3.0e9, rel=0.02)


def test_attention_of_one_layer_by_hand() -> None:
    shape = dense(layers=1, width=64, vocab_size=256)
    assert attention_flops(shape, 1000) == 4 * 500 * 64


def test_sliding_layers_cost_less_than_full_ones_and_no_more_in_a_short_context() -> None:
    full = OLMO_7B._replace(sliding_layers=0)
    assert attention_flops(OLMO_7B, 65536) < 0.5 * attention_flops(full, 65536)
    assert attention_flops(OLMO_7B, 4096) == attention_flops(full, 4096)


def test_an_adapter_has_rank_times_features() -> None:
    shape = dense(layers=3, width=128, vocab_size=256)
    # q, k, v, o: 256 features each; gate, up, down: 128 + 512 each.
    assert adapter_features(shape) == 3 * (4 * 256 + 3 * 640)
    assert adapter_parameters(shape, 16) == 16 * 3 * (4 * 256 + 3 * 640)


def test_every_expert_has_an_adapter() -> None:
    by_expert = 48 * 128 * 3 * (2048 + 768)
    attention = 48 * (4 * 2048 + 2 * 4096 + 2 * 512)
    assert adapter_parameters(QWEN_30B, 1) == by_expert + attention
