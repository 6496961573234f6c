from __future__ import annotations

import dataclasses

import pytest

from prime_train.estimate.sanity import find_implausible
from prime_train.spec import ENDLESS_STEPS, Batch, Data, Run, RunSpec, Source, prime_rl_parts
from prime_train.spec.answers import replace_parts

_RUN = RunSpec(run=Run(name="r", max_steps=10), data=Data(sources=(Source(kind="python-stdlib"),)))


def test_a_run_with_the_defaults_is_plausible() -> None:
    endless = dataclasses.replace(_RUN, run=dataclasses.replace(_RUN.run, max_steps=ENDLESS_STEPS, seed=2**63))
    assert list(find_implausible(_RUN)) == list(find_implausible(endless)) == []


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.001, 1e300])
def test_what_is_no_fraction_of_a_gpu(fraction: float) -> None:
    run = dataclasses.replace(_RUN, inference=prime_rl_parts.Inference(gpu_memory_fraction=fraction), format="prime-rl")
    (found,) = find_implausible(run)
    assert (found.field, found.instead) == ("inference.gpu_memory_fraction", "0.9")
    whole = dataclasses.replace(_RUN, inference=prime_rl_parts.Inference(gpu_memory_fraction=1.0), format="prime-rl")
    assert not list(find_implausible(whole))


@pytest.mark.parametrize("count", [10**16, -(10**16), int(1e300), 10**400, -(10**400)])
def test_a_count_that_no_run_has(count: int) -> None:
    native = dataclasses.replace(_RUN, batch=Batch(micro_batch=count))
    sft = replace_parts(_RUN, finetune=prime_rl_parts.Finetune(batch_sequences=count), format="prime-rl")
    assert [found.field for found in find_implausible(native)] == ["batch.micro_batch"]
    assert [found.field for found in find_implausible(sft)] == ["finetune.batch_sequences"]
    assert all(len(found.what) < 30 for found in find_implausible(native))


@pytest.mark.parametrize(("tokens", "fits"), [(10**8, True), (10**9, True), (10**9 + 1, False), (10**14, False)])
def test_a_sequence_that_is_longer_than_any(tokens: int, fits: bool) -> None:
    native = dataclasses.replace(_RUN, data=dataclasses.replace(_RUN.data, ctx_tokens=tokens))
    recipe = dataclasses.replace(_RUN, recipe=prime_rl_parts.Recipe(ctx_tokens=tokens), format="recipe")
    assert [found.field for found in find_implausible(native)] == ([] if fits else ["data.ctx_tokens"])
    assert [found.field for found in find_implausible(recipe)] == ([] if fits else ["recipe.ctx_tokens"])


def test_more_gpus_than_there_are() -> None:
    run = dataclasses.replace(_RUN, recipe=prime_rl_parts.Recipe(gpus=10**7, shards=8), format="recipe")
    (found,) = find_implausible(run)
    assert (found.field, found.why) == ("recipe.gpus", "no real run has more than 1e+06 GPUs")
