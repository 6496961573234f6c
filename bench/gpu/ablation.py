"""What single parts of the trainer cost or gain at 124 million parameters: as much of it as its part has time for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, cast

from gpu.bench import Bench
from gpu.training import (
    Scale,
    batch_of,
    describe_speed,
    pick_device,
    scale_of,
    take_steps,
    time_steps,
    training_of,
)
from prime_train import spec
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.data import stream
from prime_train.trainer.model.decoder import Decoder, whole_loss

LOADED_VOCAB = 8192  # of the tokenizer that is trained for the loader
WORKERS = 4


class Case(NamedTuple):
    what: str
    scale: Scale
    all_logits: bool = False
    loaded: bool = False  # micro-batches come from the trainer's loader


def measure(bench: Bench) -> None:
    base = scale_of(bench, "124m")
    eager = base._replace(model=replace(base.model, compile=False))
    recomputed = base._replace(model=replace(base.model, recompute="selective"))
    cases = (  # those whose answer is needed most come first
        Case("as it is", base),
        Case("without compile", eager),
        Case("the loss of all logits at once", base, all_logits=True),
        Case(f"batches from {WORKERS} workers", base, loaded=True),
        Case("recompute = selective", recomputed),
    )
    as_it_is: float | None = None
    for case in cases:
        with bench.case(case.what):
            values = _measure(bench, case)
            as_it_is = as_it_is or values["tokens_per_s"]
            bench.emit(case.what, **values, ratio=round(values["tokens_per_s"] / as_it_is, 4))


def _measure(bench: Bench, case: Case) -> dict[str, Any]:
    scale, device = case.scale, pick_device(bench)
    batch = batch_of(scale, documents=4)
    with ExitStack() as closing:
        next_batch = _open_rows(bench, scale, closing) if case.loaded else lambda: batch
        if case.loaded:
            scale = scale._replace(vocab_size=max(scale.vocab_size, LOADED_VOCAB))
        training = training_of(scale, device)
        if case.all_logits:
            cast(Decoder, training.model).head_loss = whole_loss

        def take(count: int) -> None:
            for _ in range(count):
                take_steps(training, [next_batch()], 1)

        return describe_speed(bench, device, scale, time_steps(bench, take))


def _open_rows(bench: Bench, scale: Scale, closing: ExitStack) -> Callable[[], MicroBatch]:
    """Micro-batches with text to read, tokenise, pack and copy."""
    run = replace(
        scale.run,
        data=replace(scale.run.data, loader_workers=0 if bench.tiny else WORKERS),
        tokenizer=spec.Tokenizer(vocab_size=260 if bench.tiny else LOADED_VOCAB),
    )
    rows = stream.TrainStream(run, stream.prepare(run), rank=0, world_size=1, position=None)
    closing.callback(rows.close)
    return rows.next_micro_batch
