"""Shapes, hardware and runs that the tests of training memory share. Values only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.values import Hardware
from prime_train.spec import Batch, Data, Model, Parallel, Precision, Run, RunSpec, Source
from prime_train.spec.prime_rl_parts import Deployment, Finetune, LaunchPart, Lora, PrimeRl, Recipe, Trainer

T = TypeVar("T")
EIGHT_GPUS = Hardware("test", "test", 8, 0.0, 1e12, 1e15, (9, 0))
PROGRAMS = ("hf", "torchtitan", "torchtune", "litgpt", "ms-swift", "qwen-finetune", "nobody-knows")


def shape(layers: int = 28, hidden: int = 1024, vocab: int = 151936, tied: bool = True, experts: int = 0) -> ModelShape:
    """A decoder like Qwen3-0.6B, or one with experts."""
    heads = max(1, hidden // 64)
    attention = 2 * hidden * heads * 64 + 2 * hidden * heads * 32
    block = attention + (experts * 3 * hidden * 256 + hidden * experts if experts else 9 * hidden * hidden)
    parameters = layers * (block + 2 * hidden) + hidden + vocab * hidden * (1 if tied else 2)
    return ModelShape(
        name="test/shape-1b",
        vocab_size=vocab,
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=max(1, heads // 2),
        head_dim=64,
        mlp_size=3 * hidden,
        parameters=parameters,
        tie_embeddings=tied,
        source="test",
        experts=experts,
        experts_per_token=min(2, experts),
        expert_mlp_size=256 if experts else 0,
        dense_layers=0 if experts else layers,
    )


def shapes() -> st.SearchStrategy[ModelShape]:
    return st.builds(
        shape,
        layers=st.integers(1, 120),
        hidden=st.integers(1, 256).map(lambda count: 64 * count),
        vocab=st.integers(256, 300_000),
        tied=st.booleans(),
        experts=st.sampled_from((0, 4, 128)),
    )


def native(
    ctx_tokens: int = 1024, micro_batch: int = 1, processes: int = 1, shards: int = 1, compute: str = "bf16"
) -> RunSpec:
    return RunSpec(
        run=Run(name="run", max_steps=1),
        model=Model(),
        data=Data(sources=(Source(kind="python-stdlib"),), ctx_tokens=ctx_tokens),
        batch=Batch(micro_batch=micro_batch),
        parallel=Parallel(processes=processes, dp_shard=shards),
        precision=Precision(compute=compute),  # type: ignore[arg-type]
    )


def prime_rl(trainer: Trainer, gpus: int = 1, generation: str = "2026-01", rank: int = 0, sft: bool = False) -> RunSpec:
    base = native()
    finetune = Finetune(ctx_tokens=trainer.ctx_tokens, micro_batch_sequences=1, batch_sequences=8) if sft else None
    return RunSpec(
        run=base.run,
        data=base.data,
        format="prime-rl",
        prime_rl=PrimeRl(
            launch=LaunchPart(generation=generation),
            deployment=Deployment(train_gpus=gpus),
            trainer=trainer,
            finetune=finetune,
            lora=Lora(rank=rank) if rank else None,
        ),
    )


def recipe(asked: Recipe) -> RunSpec:
    base = native()
    return RunSpec(run=base.run, data=base.data, recipe=asked, format="recipe")


def made(part: Callable[..., T], **fields: st.SearchStrategy[object]) -> st.SearchStrategy[T]:
    """Values of a part with these fields only; hypothesis would fill in the others from their annotations."""
    return st.fixed_dictionaries(fields).map(lambda values: part(**values))


def runs() -> st.SearchStrategy[RunSpec]:
    """Runs of every kind of program, at sizes a person may ask for."""
    trainers = made(
        Trainer,
        ctx_tokens=st.integers(8, 2**17),
        activation_checkpointing=st.booleans(),
        activation_offloading=st.booleans(),
        optim_cpu_offload=st.booleans(),
        head_chunk_tokens=st.sampled_from((None, 1024, 8192)),
    )
    ours = st.builds(native, st.integers(8, 2**15), st.integers(1, 64), st.sampled_from((1, 8)), st.just(1),
                     st.sampled_from(("bf16", "fp32")))  # fmt: skip
    rl = st.builds(prime_rl, trainers, st.sampled_from((1, 2, 8)), st.sampled_from(("2026-01", "2026-05", "2026-08")),
                   st.sampled_from((0, 16)), st.booleans())  # fmt: skip
    recipes = made(
        Recipe,
        program=st.sampled_from(PROGRAMS),
        sharding=st.sampled_from(("none", "ddp", "fsdp", "zero1", "zero2", "zero3", "device_map")),
        ctx_tokens=st.integers(8, 2**17),
        micro_batch=st.integers(1, 16),
        micro_batches_per_step=st.integers(1, 4),
        activation_checkpointing=st.sampled_from(("none", "selective", "full")),
        adapter=st.sampled_from(("none", "lora", "adapter-v2")),
        optimizer=st.sampled_from(("adamw", "adamw-8bit", "sgd")),
        quantization=st.sampled_from((None, "nf4", "int4")),
        head=st.sampled_from(("full", "token-chunked", "vocab-chunked")),
    )
    return st.one_of(ours, rl, st.builds(recipe, recipes))
