"""What a model takes to serve and to train: the smallest number of GPUs, and what never may be the other way round."""

from __future__ import annotations

import pytest

from prime_train.estimate import hardware
from prime_train.estimate.model.shape import ModelShape, shape_from_registry
from prime_train.models.checks.memory_checks import fit_serving, fit_training
from tests.unit.models.known_models import H100, check, evidence


def shape(name: str) -> ModelShape:
    found = shape_from_registry(name)
    assert found is not None
    return found


SIZES = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-70B")


def test_a_larger_model_never_takes_fewer_gpus() -> None:
    served = [fit_serving(shape(name), H100) for name in SIZES]
    counts = [found.gpus for found in served if found is not None]
    assert counts == sorted(counts)
    assert len(counts) == len(SIZES)
    for lora in (True, False):
        trained = [fit_training(shape(name), H100, lora=lora).gpus or 10**6 for name in SIZES]
        assert trained == sorted(trained)


@pytest.mark.parametrize("name", SIZES)
def test_lora_never_takes_more_than_training_in_full(name: str) -> None:
    full, lora = fit_training(shape(name), H100, lora=False), fit_training(shape(name), H100, lora=True)
    assert (lora.gpus or 10**6) <= (full.gpus or 10**6)


def test_a_server_has_the_weights_of_the_model() -> None:
    found = fit_serving(shape("Qwen/Qwen3-8B"), H100)
    assert found is not None
    assert found.gpus == 1
    assert found.weight_bytes == pytest.approx(8_190_735_360 * 2, rel=0.02)


def test_what_no_server_takes_is_reported() -> None:
    small = hardware.hardware_from_name("rtx-4090")
    assert fit_serving(shape("meta-llama/Llama-3.1-405B"), small) is None
    assert fit_training(shape("meta-llama/Llama-3.1-405B"), small, lora=False).gpus is None


def test_both_are_reported() -> None:
    assert "1 x h100-80gb" in check(evidence(), "memory-to-serve").what
    assert "by LoRA of rank 16" in check(evidence(), "memory-to-train").what


def test_experts_are_spread_where_one_block_is_larger_than_a_gpu() -> None:
    """A block of DeepSeek-V3 has 11.3 B numbers, so without expert parallelism not even LoRA would fit on 512 GPUs."""
    large = shape("Qwen/Qwen3-235B-A22B-Instruct-2507")._replace(
        parameters=671_026_419_200, layers=61, hidden_size=7168, experts=256, expert_mlp_size=2048
    )
    found = fit_training(large, H100, lora=True)
    assert found.gpus is not None
    assert found.gpus <= 128
    assert found.expert_parallel > 1
    assert fit_training(shape("Qwen/Qwen3-8B"), H100, lora=False).expert_parallel == 1
