"""A run on audio as a `Work`: the clips, the encoder with its objective, and what evaluations measure."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prime_train.core.errors import UserError
from prime_train.core.rundir import make_folder
from prime_train.events import ClipsBroken
from prime_train.spec import RunSpec
from prime_train.spec.audio import Audio
from prime_train.spec.clip_size import flops_per_clip
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.audio import pictures
from prime_train.trainer.audio.batches import AudioBatches
from prime_train.trainer.audio.columns import refuse_other_names
from prime_train.trainer.audio.learning.audio_model import audio_loss, build_audio
from prime_train.trainer.audio.learning.encoder_folder import write_encoder
from prime_train.trainer.audio.learning.micro_batch import AudioMicroBatch, make_micro_batch
from prime_train.trainer.audio.learning.probes import HeldOutProbe
from prime_train.trainer.audio.order import ClipOrder
from prime_train.trainer.audio.samples import SampleMaker
from prime_train.trainer.audio.sources import columns_of, count_classes, find_clips, mel_of
from prime_train.trainer.audio.tables import ClipTable, open_sources
from prime_train.trainer.build import Ready, gather_state, spread_training
from prime_train.trainer.device import Device
from prime_train.trainer.evaluation.evaluate import Evaluation
from prime_train.trainer.loops.step import Training
from prime_train.trainer.loops.work import Position, Work
from prime_train.trainer.parallel import World
from prime_train.trainer.saves.checkpoint import Checkpointer
from prime_train.trainer.saves.export import DTYPES

_NAMED = 5  # broken clips in an event


def load_audio(run: RunSpec, world: World) -> Work[AudioMicroBatch]:
    """The clips in data.sources and the encoder in [audio]. Raises UserError."""
    # One rank per machine makes, downloads and copies them, because the others would write the same files.
    paths = world.load_in_turn(partial(_prepare, run)) or find_clips(run)
    clips = _OpenedClips(run, paths)
    return Work(
        get_ready=clips.get_ready,
        open_rows=clips.open_rows,
        loss=audio_loss,
        unit="clips",
        open_evaluations=clips.open_evaluations,
        export=_export,
    )


def _prepare(run: RunSpec) -> tuple[Path, ...]:
    """The clips of each source, with parquet copied as Arrow. Raises UserError."""
    assert run.audio is not None, "who reads a run.toml fills it"
    paths, columns = find_clips(run), columns_of(run.audio)
    refuse_other_names(paths, columns)
    open_sources(paths, columns)
    return paths


class ClipRows:
    """One rank's micro-batches. The position counts the clips that all ranks have used."""

    def __init__(self, run: RunSpec, paths: Sequence[Path], classes: int, rank: int, ranks: int) -> None:
        assert run.audio is not None
        self._audio, self._seed, self._classes = run.audio, run.run.seed, classes
        self._paths, self._rank, self._ranks = paths, rank, ranks
        self._probs = run.data.sampling_probs
        self._settings = (run.batch.micro_batch, run.data.planned_workers)
        self._held_out = run.eval.held_out_ratio
        self.broken: Counter[Any] = Counter()  # clips, on this rank and in this attempt
        self.read = 0
        self._batches = self._open()

    def _open(self) -> AudioBatches:
        audio = self._audio
        batch, workers = self._settings
        return AudioBatches(
            self._paths,
            batch,
            seed=self._seed,
            rank=self._rank,
            ranks=self._ranks,
            workers=workers,
            threads=audio.threads,
            clip_s=audio.clip_s,
            mel=mel_of(audio),
            columns=columns_of(audio),
            block_shards=audio.block_shuffle,
            on_broken=audio.on_broken,
            most_broken=audio.most_broken,
            held_out=self._held_out,
            probs=self._probs,
            seek=audio.seek,
        )

    def next_micro_batch(self) -> AudioMicroBatch:
        before = self._batches.broken.copy()
        made = next(self._batches)
        self.broken += self._batches.broken - before
        self.read += len(made.rows)
        return make_micro_batch(made, self._audio, self._classes, self._seed)

    def take_settings(self, run: RunSpec) -> None:
        settings = (run.batch.micro_batch, run.data.planned_workers)
        if settings != self._settings:
            position = self.position()
            self.close()
            self._settings = settings
            self._batches = self._open()
            self._batches.load_state_dict(position)

    def go_on(self, position: Position) -> None:
        self._batches.load_state_dict(position)

    def position(self) -> Position:
        return self._batches.state_dict()

    def close(self) -> None:
        self._batches.close()


@dataclass(frozen=True, slots=True)
class _ClipEvaluation:
    """Measures the held-out clips, and reports the clips that could not be decoded. The rows end with it."""

    rows: ClipRows
    probe: HeldOutProbe

    def measure(self, attempt: Attempt, training: Training, step: int) -> float | None:
        self._report_broken(attempt, training, step)
        return self.probe.measure(attempt, training, step) if len(self.probe.rows) else None

    def _report_broken(self, attempt: Attempt, training: Training, step: int) -> None:
        own = [sum(self.rows.broken.values()), self.rows.read]
        broken, read = training.world.sum(torch.tensor(own, device=training.device.torch)).tolist()
        # Each rank names what it has read itself.
        named = tuple(f"{one.where}: {one.why}" for one in list(self.rows.broken)[:_NAMED])
        if own[0] or (broken and attempt.rank == 0):
            attempt.events.append(ClipsBroken(attempt.number, step, broken, read, named))

    def close(self) -> None:
        self.rows.close()


class _OpenedClips:
    """A run's clips, and what an attempt opens on them."""

    def __init__(self, run: RunSpec, paths: Sequence[Path]) -> None:
        assert run.audio is not None, "who reads a run.toml fills it"
        self._run, self._paths, self._audio = run, paths, run.audio
        self._table = open_sources(paths, columns_of(self._audio))
        self._classes = count_classes(self._audio, self._table)
        self._rows: ClipRows | None = None

    def get_ready(self, attempt: Attempt, device: Device, world: World) -> Ready[Audio]:
        audio, classes = self._audio, self._classes
        build = partial(build_audio, audio, classes, self._run.run.seed, device.torch)
        training, reached = spread_training(attempt, build, device, world)
        # A guess among the classes has a loss to compare with in this objective alone.
        guessed = classes if audio.objective == "supervised" and not audio.multi_label else 1
        checkpointer = Checkpointer(attempt, world, device.torch)
        return Ready(training, audio, guessed, checkpointer, reached, flops_per_clip(audio))

    def open_rows(self, rank: int, ranks: int, position: Position | None) -> ClipRows:
        self._rows = ClipRows(self._run, self._paths, self._classes, rank, ranks)
        if position is not None:
            self._rows.go_on(position)
        return self._rows

    def open_evaluations(self, attempt: Attempt, _ready: Ready[Any]) -> tuple[Evaluation, ...]:
        assert self._rows is not None, "the rows are opened before"
        audio, mel = self._audio, mel_of(self._audio)
        if attempt.rank == 0:
            _draw_once(self._table, attempt.run_dir.plots / "spectrograms.png", audio)
        _, held = self._table.hold_out(self._run.eval.held_out_ratio)
        maker = SampleMaker(held, ClipOrder(held.rows, 0), mel, audio.clip_s, columns_of(audio), seek=audio.seek)
        count = min(held.rows, audio.probe.clips)
        # Spread over all, because rows are often sorted by class or by source.
        rows = np.arange(count) * held.rows // max(1, count)
        return (_ClipEvaluation(self._rows, HeldOutProbe(maker, rows, audio, self._classes)),)


def _draw_once(table: ClipTable, path: Path, audio: Audio) -> None:
    """A picture with ten clips for the report, unless an earlier attempt drew it or there is no matplotlib."""
    if pictures.can_draw() and not os.path.lexists(path):
        with suppress(UserError, OSError):  # no run ends for want of a picture
            make_folder(path.parent)
            pictures.draw_spectrograms(table, path, audio.clip_s, mel_of(audio))


def _export(attempt: Attempt, ready: Ready[Audio]) -> Path:
    """Write the encoder into the folder `final`; returns its path. Every rank calls it."""
    weights = gather_state(ready.training.model)
    if attempt.rank == 0:
        write_encoder(attempt.run_dir.final, weights, ready.known, DTYPES[attempt.run.checkpoint.export_dtype])
    return attempt.run_dir.final
