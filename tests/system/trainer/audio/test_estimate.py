"""The estimate of a run on clips is what the trainer keeps: its weights, and its live tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from prime_train import spec
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import shape_from_run
from prime_train.estimate.time.run_time import step_setup_of
from prime_train.estimate.time.step_flops import work_of
from prime_train.estimate.values import Term
from prime_train.spec import RunSpec
from prime_train.spec.audio import Audio, AudioEncoder, Lejepa, MaskedAutoencoder
from prime_train.trainer.audio.batches import AudioBatch
from prime_train.trainer.audio.learning.audio_model import AudioModel, audio_loss, build_audio
from prime_train.trainer.audio.learning.micro_batch import AudioMicroBatch, make_micro_batch
from prime_train.trainer.device import Device
from prime_train.trainer.loops.step import Training, take_step
from prime_train.trainer.muon import build_optimizer
from prime_train.trainer.parallel import World
from tests.system.trainer.live_tensors import ALLOCATOR, ANY_GPU, Measured, measure_step
from tests.unit.trainer.audio.learning.small import OBJECTIVES

pytestmark = pytest.mark.usefixtures("one_thread")
CLASSES = 12
ENCODERS = {
    "deep": Audio(classes=CLASSES, frames=256, encoder=AudioEncoder(layers=4, width=128, heads=4)),
    "wide": Audio(
        classes=400,
        frames=128,
        mels=64,
        encoder=AudioEncoder(layers=6, width=256, heads=4, registers=0, mlp_ratio=4.0),
        masked_autoencoder=MaskedAutoencoder(layers=3, width=128, heads=4, mask_ratio=0.5),
        lejepa=Lejepa(views=3, projector_width=128, projection=32),
    ),
}
CLIPS = {"deep": 6, "wide": 12}
SHAPES = [(name, objective) for name in ENCODERS for objective in OBJECTIVES]


def run_of(name: str, objective: Any, compute: Literal["fp32", "bf16"] = "fp32", micro_batches: int = 1) -> RunSpec:
    return RunSpec(
        run=spec.Run(name="clips", kind="audio", max_steps=2),
        audio=replace(ENCODERS[name], objective=objective),
        data=spec.Data(sources=(spec.Source(kind="chirps"),)),
        batch=spec.Batch(micro_batch=CLIPS[name] // micro_batches, global_batch=CLIPS[name]),
        precision=spec.Precision(compute=compute),
    )


def audio_of(run: RunSpec) -> Audio:
    assert run.audio is not None
    return run.audio


@pytest.mark.parametrize(("name", "objective"), SHAPES)
def test_every_weight_is_counted(name: str, objective: str) -> None:
    run = run_of(name, objective)
    audio = audio_of(run)
    for given in (audio, replace(audio, label_field="", classes=None)):
        if objective == "supervised" and not given.label_field:
            continue
        with torch.device("meta"):
            model = AudioModel(given, given.classes or 0)
        counted = shape_from_run(replace(run, audio=given), 0).parameters
        assert counted == sum(weight.numel() for weight in model.parameters())


def estimated(run: RunSpec) -> tuple[Term, ...]:
    memory = training_memory(setup_of(run, ANY_GPU, shape_from_run(run, 0)), ANY_GPU)
    return tuple(term for term in memory.terms if term.name != ALLOCATOR)


def cpu(run: RunSpec) -> Device:
    return Device(torch.device("cpu"), "cpu", "bf16" if run.precision.compute == "bf16" else "fp32", None)


def micro_batches(run: RunSpec) -> list[AudioMicroBatch]:
    """Those of a step, with random clips."""
    audio, batch = audio_of(run), run.batch.micro_batch
    draw, made = np.random.default_rng(5), []
    for first in range(0, run.batch.global_batch or batch, batch):
        places = np.arange(first, first + batch)
        log_mels = draw.standard_normal((batch, audio.frames, audio.mels)).astype(np.float32)
        clips = AudioBatch(log_mels, places[:, None] % CLASSES, np.full(batch, audio.frames), places, places)
        made.append(make_micro_batch(clips, audio, audio.classes or 0, seed=3))
    return made


def measured(run: RunSpec, *, fused: bool) -> Measured:
    """The live tensors of the second step."""
    audio, made = audio_of(run), micro_batches(run)
    model = build_audio(audio, audio.classes or 0, run.run.seed)
    world, optimizer = World(rank=0, size=1), build_optimizer(model, run.optim)
    training = Training(model, optimizer, world, cpu(run), run.optim.clip_norm)
    return measure_step(training, lambda: take_step(training, made, 1e-4, audio_loss), fused=fused)


@pytest.mark.parametrize(("name", "objective"), SHAPES)
def test_the_trainer_on_a_cpu_keeps_what_is_estimated(name: str, objective: str) -> None:
    """A CPU keeps what each norm normalised too, which a GPU does not, and each block has four norms."""
    run = run_of(name, objective)
    live = measured(run, fused=False)
    assert sum(term.bytes for term in estimated(run)) == pytest.approx(live.peak, rel=0.13)


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize(("name", "objective"), SHAPES)
def test_with_the_operations_of_a_gpu_it_keeps_that(name: str, objective: str, compute: Any) -> None:
    run = run_of(name, objective, compute)
    live = measured(run, fused=True)
    assert sum(term.bytes for term in estimated(run)) == pytest.approx(live.peak, rel=0.02)


def test_gradients_of_several_micro_batches_are_counted() -> None:
    run = run_of("wide", "supervised", micro_batches=2)
    live = measured(run, fused=True)
    assert sum(term.bytes for term in estimated(run)) == pytest.approx(live.peak, rel=0.04)


@pytest.mark.parametrize(("name", "objective"), SHAPES)
def test_the_flops_are_those_of_forward_and_backward(name: str, objective: str) -> None:
    run = run_of(name, objective)
    audio = audio_of(run)
    model = build_audio(audio, audio.classes or 0, run.run.seed)
    (made,) = micro_batches(run)
    # Attention as two products, because torch counts none of the operation that a CPU has.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        audio_loss(model, made, cpu(run)).backward()  # type: ignore[no-untyped-call]
    setup, _ = step_setup_of(run, setup_of(run, ANY_GPU, shape_from_run(run, 0)), ANY_GPU)
    assert work_of(setup).model_flops == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_attention_goes_both_ways_and_classes_are_met_once_in_a_clip() -> None:
    flops = {}
    for objective in OBJECTIVES:
        run = run_of("deep", objective)
        setup, _ = step_setup_of(run, setup_of(run, ANY_GPU, shape_from_run(run, 0)), ANY_GPU)
        work = work_of(setup)
        assert work.head_flops == work.head_bytes == 0
        flops[objective] = work.model_flops
    audio = ENCODERS["deep"]
    tokens, width = 6 * (128 + 4), 128
    block = 4 * width**2 + 3 * width * audio.encoder.mlp_size + 2 * 132 * width
    expected = 6 * (tokens * 4 * block + 6 * (128 * 256 * width + width * CLASSES))
    assert flops["supervised"] == pytest.approx(expected, rel=1e-9)
    assert flops["masked_autoencoder"] < flops["supervised"]
