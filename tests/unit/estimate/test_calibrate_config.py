"""Sizes may differ between a measured run and the one it calibrates; model, program and number format may not."""

from __future__ import annotations

from typing import Any

import pytest

from prime_train.core.errors import ExitCode, UserError
from prime_train.estimate.calibrate import scaled_differences
from prime_train.estimate.candidate_changes import apply_changes
from prime_train.spec import Data, Run, RunSpec, Source, prime_rl_parts
from prime_train.spec.answers import replace_parts

_NATIVE = RunSpec(run=Run(name="r", max_steps=10), data=Data(sources=(Source(kind="python-stdlib"),)))
_SFT = replace_parts(
    _NATIVE,
    launch=prime_rl_parts.LaunchPart(generation="2026-08"),
    trainer=prime_rl_parts.Trainer(model_name="Qwen/Qwen3-4B"),
    finetune=prime_rl_parts.Finetune(ctx_tokens=4096, micro_batch_sequences=4),
    format="prime-rl",
)


def test_a_config_has_no_difference_to_itself() -> None:
    assert scaled_differences(_SFT, _SFT, "m") == ()


@pytest.mark.parametrize(
    ("run", "field", "value"),
    [
        (_SFT, "finetune.micro_batch_sequences", 8),
        (_SFT, "finetune.ctx_tokens", 8192),
        (_NATIVE, "batch.micro_batch", 3),
        (_NATIVE, "data.ctx_tokens", 64),
        (_NATIVE, "parallel.processes", 2),
    ],
)
def test_sizes_are_scaled_and_named(run: RunSpec, field: str, value: Any) -> None:
    (found,) = scaled_differences(run, apply_changes(run, ((field, value),)), "m")
    assert (found.field, found.here) == (field, value)
    assert found.text().startswith(f"{field} was ")


@pytest.mark.parametrize(
    ("run", "field", "value"),
    [
        (_SFT, "trainer.model_name", "Qwen/Qwen3-8B"),
        (_SFT, "trainer.optimization_dtype", "bfloat16"),
        (_SFT, "trainer.fsdp_cpu_offload", True),
        (_NATIVE, "model.layers", 12),
        (_NATIVE, "precision.compute", "fp32"),
        (_NATIVE, "precision.fp8", "rowwise"),
    ],
)
def test_another_model_or_type_is_refused_by_name(run: RunSpec, field: str, value: Any) -> None:
    other = apply_changes(run, ((field, value), ("batch.micro_batch", 3)))
    with pytest.raises(UserError, match="another config") as refused:
        scaled_differences(run, other, "runs/a")
    assert field in refused.value.what
    assert refused.value.exit_code is ExitCode.FINDINGS


def test_an_adapter_and_another_program_are_refused() -> None:
    with pytest.raises(UserError, match="lora was off and is on"):
        scaled_differences(_SFT, replace_parts(_SFT, lora=prime_rl_parts.Lora(rank=8)), "m")
    with pytest.raises(UserError, match="the program was"):
        scaled_differences(_NATIVE, _SFT, "m")
