"""What precision.fp8 demands of the settings and of the architecture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prime_train import spec
from prime_train.spec import RunSpec
from prime_train.spec.hf_config import find_fp8_conflicts, find_fp8_size_conflict
from prime_train.spec.rl import Adapter, Rl
from tests.unit.spec.architectures import architecture

RUN = RunSpec(
    run=spec.Run(name="mine", max_steps=1),
    data=spec.Data(sources=(spec.Source(kind="python-stdlib"),), ctx_tokens=512),
    precision=spec.Precision(fp8="rowwise"),
)
SIZES = architecture(vocab_size=100, hidden_size=64, heads=4, kv_heads=4, mlp_size=250)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, []),
        ({"run": replace(RUN.run, kind="sft")}, []),
        ({"run": replace(RUN.run, kind="rl"), "rl": Rl()}, [("precision.fp8", "none")]),
        ({"model": spec.Model(lora=Adapter())}, [("precision.fp8", "none")]),
        ({"precision": spec.Precision(compute="fp32", fp8="tensorwise")}, [("precision.compute", "bf16")]),
        ({"precision": spec.Precision(compute="bf16", fp8="tensorwise")}, []),
        ({"data": replace(RUN.data, ctx_tokens=1000)}, [("data.ctx_tokens", 992)]),
        ({"data": replace(RUN.data, ctx_tokens=9)}, [("data.ctx_tokens", 16)]),
    ],
)
def test_settings(parts: dict[str, Any], expected: list[tuple[str, object]]) -> None:
    run = replace(RUN, **parts)
    assert [(found.at, found.value) for found in find_fp8_conflicts(run)] == expected
    without = replace(run, precision=replace(run.precision, fp8="none"))
    assert [*find_fp8_conflicts(without)] == []


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [
        ({}, True),
        ({"hidden_size": 72}, False),
        ({"heads": 3, "kv_heads": 3, "head_dim": 24}, False),
        ({"heads": 3, "kv_heads": 3, "head_dim": 24, "mlp_size": 256}, True),
        ({"heads": 4, "kv_heads": 1, "head_dim": 24}, True),  # queries of 96
        ({"heads": 3, "kv_heads": 3, "head_dim": 24, "experts": 4, "expert_mlp_size": 64}, False),
        ({"heads": 3, "kv_heads": 3, "head_dim": 24, "experts": 4, "expert_mlp_size": 64, "shared_experts": 1}, True),
    ],
)
def test_at_least_one_layer_must_fit(sizes: dict[str, Any], fits: bool) -> None:
    found = [*find_fp8_size_conflict(RUN, replace(SIZES, **sizes))]
    assert [conflict.at for conflict in found] == ([] if fits else ["precision.fp8"])
    assert [*find_fp8_size_conflict(replace(RUN, precision=spec.Precision()), replace(SIZES, **sizes))] == []
