"""The estimate of an engine's memory is what the local engine allocates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pytest
import torch
from torch import Tensor

from prime_train import spec
from prime_train.estimate.memory.setup_from_run import rl_terms
from prime_train.estimate.model.shape import shape_from_run
from prime_train.spec import RunSpec
from prime_train.spec.rl import Rl, TaskSource
from prime_train.trainer.model.decoder import config_of
from prime_train.trainer.rl.engines.local_engine import LocalEngine

VOCAB_SIZE = 32_000
MODELS = (
    spec.Model(layers=6, hidden_size=512, heads=8, kv_heads=2),
    spec.Model(layers=12, hidden_size=768, heads=12, tie_embeddings=False, qk_norm=True),
    spec.Model(layers=4, hidden_size=256, heads=4, experts=8, shared_experts=1),
)


def find_tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from find_tensors(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from find_tensors(getattr(value, field.name))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ctx_tokens", [100, 1024])
@pytest.mark.parametrize(("dtype", "number_bytes"), [(torch.bfloat16, 2.0), (torch.float32, 4.0)])
def test_the_estimate_counts_what_the_engine_allocates(
    model: spec.Model, ctx_tokens: int, dtype: torch.dtype, number_bytes: float
) -> None:
    run = RunSpec(
        run=spec.Run(name="tiny", kind="rl", max_steps=1),
        model=model,
        data=spec.Data(sources=(), ctx_tokens=ctx_tokens),
        tasks=(TaskSource(kind="calculator"),),
        rl=Rl(concurrency=5),
    )
    engine = LocalEngine(config_of(model, VOCAB_SIZE), ctx_tokens=ctx_tokens, slots=5, device="meta", dtype=dtype)
    engine.close()
    decoders = [batch.decoder for batch in (engine._current, engine._former)]
    caches = sum(decoder._cache.nbytes for decoder in decoders)
    allocated = sum(tensor.nbytes for decoder in decoders for tensor in find_tensors([*vars(decoder).values()]))
    counted = {term.name: term.bytes for term in rl_terms(run, shape_from_run(run, VOCAB_SIZE), number_bytes)}
    assert counted["engine's KV cache"] == caches
    # The estimate leaves out the angles of positions, and counts the few fp32 weights as if they had the engine's type.
    assert sum(counted.values()) == pytest.approx(allocated, rel=0.01)
