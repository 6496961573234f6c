"""Micro-batches with everything random that an objective needs, drawn by seed and place alone.

No generator has a state: a resumed run, and one on more ranks, draws the same for the same clip.
Shapes: B clips, L labels, N patches, V views, K patches in a view, D projection width, S directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from prime_train.core.errors import ExitCode, UserError
from prime_train.spec.audio import Audio
from prime_train.spec.clip_size import count_kept, count_view_times
from prime_train.trainer.audio.batches import AudioBatch
from prime_train.trainer.audio.log_mel import Floats
from prime_train.trainer.data.order import Integers
from prime_train.trainer.draws import ROWS, generator

# Purposes for random numbers; `order` has 0 and 1 for crops and other rows.
_PATCHES, _VIEW, _DIRECTIONS = 2, 3, 4


@dataclass(frozen=True, slots=True)
class AudioMicroBatch:
    """Clips with what was drawn for them."""

    log_mels: Tensor  # (B, F, M) fp32
    labels: Tensor  # (B, L) int64, -1 where a clip has no or fewer labels
    drawn: tuple[Tensor, ...]  # what the objective takes beside them
    labelled_tokens: int  # clips that count in the loss

    @property
    def tokens(self) -> Tensor:
        """One for each clip, (B, 1): the loop counts clips."""
        return self.labels[:, :1]


def make_micro_batch(batch: AudioBatch, audio: Audio, classes: int, seed: int) -> AudioMicroBatch:
    """The micro-batch from an AudioBatch. Raises UserError for labels that the objective cannot learn from."""
    _judge_labels(batch, audio, classes)
    labelled = int((batch.labels >= 0).any(axis=1).sum())
    counted = labelled if audio.objective == "supervised" else len(batch.labels)
    drawn = draw(audio, seed, batch.places)
    return AudioMicroBatch(torch.from_numpy(batch.log_mels), torch.from_numpy(batch.labels), drawn, counted)


def _judge_labels(batch: AudioBatch, audio: Audio, classes: int) -> None:
    beyond = (batch.labels >= classes).any(axis=1)
    if classes and beyond.any():
        row, label = batch.rows[beyond][0], batch.labels[beyond].max()
        what, why = f"row {row} has the label {label}", f"the model has {classes:,} classes, from 0 on"
        raise UserError(what, "audio.classes", why, f"audio.classes = {label + 1}", ExitCode.RUN_FAILED)
    several = (batch.labels[:, 1:] >= 0).any(axis=1)
    if classes and not audio.multi_label and several.any():
        what = f"row {batch.rows[several][0]} has several labels"
        why = "cross-entropy takes one label for a clip"
        raise UserError(what, "audio.multi_label", why, "audio.multi_label = true", ExitCode.RUN_FAILED)


def draw(audio: Audio, seed: int, places: Integers) -> tuple[Tensor, ...]:
    """What the objective takes beside clips and labels, for the clips at these places (B,) in the sequence."""
    if audio.objective == "masked_autoencoder":
        orders = [generator(seed, ROWS, _PATCHES, place).permutation(audio.patches) for place in places.tolist()]
        return (torch.from_numpy(np.stack(orders)),)  # (B, N)
    if audio.objective == "lejepa":
        views, gains = zip(*(_draw_views(audio, seed, place) for place in places.tolist()), strict=True)
        # By the first clip, because a micro-batch is compared as a whole, in the same directions.
        shape = (audio.lejepa.projection, audio.lejepa.slices)
        directions = generator(seed, ROWS, _DIRECTIONS, int(places[0])).standard_normal(shape, dtype=np.float32)
        return tuple(map(torch.from_numpy, (np.stack(views), np.stack(gains), directions)))  # (B, V, K), (B, V), (D, S)
    return ()


def _draw_views(audio: Audio, seed: int, place: int) -> tuple[Integers, Floats]:
    """The patches in each view, (V, K), and the gains, (V,)."""
    source, sizes = generator(seed, ROWS, _VIEW, place), audio.lejepa
    times, pitches = audio.grid
    width, kept = count_view_times(audio), count_kept(audio)
    begins = source.integers(0, times - width + 1, size=sizes.views)
    views = [begin * pitches + source.permutation(width * pitches)[:kept] for begin in begins]
    return np.stack(views), (sizes.gain * source.standard_normal(sizes.views)).astype(np.float32)
