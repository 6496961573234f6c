"""What an architecture allows of the settings of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prime_train import spec
from prime_train.spec import RunSpec
from prime_train.spec.decoder_size import architecture_from_fields
from prime_train.spec.hf_config import find_conflicts
from prime_train.spec.rl import Adapter
from tests.unit.spec.architectures import architecture

EXPERTS = spec.Model(experts=8, expert_mlp_size=64, qk_norm=True)
RUN = RunSpec(
    run=spec.Run(name="mine", max_steps=1),
    model=EXPERTS,
    data=spec.Data(sources=(spec.Source(kind="python-stdlib"),), ctx_tokens=512),
)
GPT2 = architecture(
    vocab_size=100,
    hidden_size=64,
    heads=4,
    kv_heads=4,
    mlp_size=256,
    learned_positions=256,
    biases="all",
    gated_mlp=False,
)


def conflicts(model: dict[str, Any], **parts: Any) -> list[tuple[str, object]]:
    run = replace(RUN, model=replace(EXPERTS, **model), **parts)
    return [(found.at, found.value) for found in find_conflicts(run, architecture_from_fields(run.model, 100))]


@pytest.mark.parametrize(
    ("model", "parts", "expected"),
    [
        ({}, {}, []),
        ({"router": "softmax"}, {}, []),
        ({"experts_per_token": 9}, {}, [("model.experts_per_token", 8)]),
        ({"router": "softmax", "qk_norm": False}, {}, [("model.router", "sigmoid")]),
        ({"router": "softmax", "shared_experts": 1}, {}, [("model.router", "sigmoid")]),
        ({"expert_mlp_size": 100}, {}, [("model.expert_mlp_size", 104)]),
        ({"hidden_size": 250, "head_dim": 64}, {}, [("model.hidden_size", 256)]),
        ({}, {"parallel": spec.Parallel(processes=4, dp_shard=4)}, []),
        ({}, {"parallel": spec.Parallel(processes=6, dp_shard=6)}, [("parallel.dp_shard", 2)]),
        ({}, {"parallel": spec.Parallel(processes=16, dp_shard=16)}, [("parallel.dp_shard", 8)]),
        ({"lora": Adapter(targets=("query", "up"))}, {}, [("model.lora.targets", ["query"])]),
        ({"lora": Adapter(targets=("query", "value"))}, {}, []),
    ],
)
def test_experts(model: dict[str, Any], parts: dict[str, Any], expected: list[tuple[str, object]]) -> None:
    assert conflicts(model, **parts) == expected


@pytest.mark.parametrize(("ctx_tokens", "expected"), [(256, []), (257, [("data.ctx_tokens", 256)])])
def test_a_context_beyond_the_table_of_positions(ctx_tokens: int, expected: list[tuple[str, object]]) -> None:
    run = replace(RUN, model=spec.Model(), data=replace(RUN.data, ctx_tokens=ctx_tokens))
    assert [(found.at, found.value) for found in find_conflicts(run, GPT2)] == expected
    windowed = replace(GPT2, learned_positions=0, sliding_window=256)
    assert [(found.at, found.value) for found in find_conflicts(run, windowed)] == expected
