from __future__ import annotations

import pytest

from prime_train.core.errors import UserError
from prime_train.spec import Model
from prime_train.spec.decoder_size import architecture_from_fields
from prime_train.spec.hf_config import read_architecture
from tests.unit.spec.architectures import architecture

# Shapes and counts of published models: config.json and the parameter count of their model cards.
QWEN3_0_6B = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "tie_word_embeddings": True,
}
LLAMA_3_1_8B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(("config", "parameters"), [(QWEN3_0_6B, 596_049_920), (LLAMA_3_1_8B, 8_030_261_248)])
def test_published_counts(config: dict[str, object], parameters: int) -> None:
    assert read_architecture(config, "config.json").parameters == parameters


@pytest.mark.parametrize(
    "change", [{"vocab_size": None}, {"hidden_size": "big"}, {"num_hidden_layers": 0}, {"num_attention_heads": True}]
)
def test_a_config_without_a_number(change: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(change))):
        read_architecture(LLAMA_3_1_8B | change, "config.json")


def test_unset_fields() -> None:
    assert architecture_from_fields(Model(layers=2, hidden_size=256, heads=4), 1000) == architecture(
        vocab_size=1000, hidden_size=256, heads=4, kv_heads=4, head_dim=64, mlp_size=704
    )


@pytest.mark.parametrize(
    "model",
    [
        Model(),
        Model(layers=3, hidden_size=96, heads=6, kv_heads=2, tie_embeddings=False),
        Model(layers=1, hidden_size=64, heads=2, head_dim=24, mlp_size=100, qk_norm=True),
    ],
)
def test_the_trainer_counts_the_same(model: Model) -> None:
    from prime_train.trainer.model.decoder import config_of
    from tests.unit.trainer.tiny import parameter_count

    assert architecture_from_fields(model, 512).parameters == parameter_count(config_of(model, 512))
