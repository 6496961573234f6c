"""Measures an encoder on held-out clips: the loss, the linear probe and the nearest neighbours. Changes nothing.

Each clip is read by its centre. Shapes: H held-out clips, B clips in a batch, C embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from prime_train.events import Evaluated, Measured
from prime_train.spec.audio import Audio
from prime_train.trainer import parallel
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.audio.batches import AudioBatch, pad_labels
from prime_train.trainer.audio.clips import ClipError
from prime_train.trainer.audio.learning.audio_model import AudioModel, audio_loss, standardise
from prime_train.trainer.audio.learning.micro_batch import make_micro_batch
from prime_train.trainer.audio.learning.supervised import mark_labels
from prime_train.trainer.audio.samples import SampleMaker, SampleParts
from prime_train.trainer.data.order import Integers
from prime_train.trainer.device import Device
from prime_train.trainer.evaluation.evaluate import share
from prime_train.trainer.loops.step import Training

_SHARPNESS = 0.07  # the votes' temperature. Source: DINO, arXiv 2104.14294, s. 4.1


class ProbeScores(NamedTuple):
    """What the held-out clips show. A score is None where no clip has a label."""

    loss: float  # the objective's, a mean over the clips that count
    clips: int
    labelled: int
    probe: float | None  # accuracy; with several labels the mean average precision
    neighbours: float | None


@dataclass(frozen=True)
class HeldOutProbe:
    """Held-out clips as an evaluation. `rows`: theirs, in the table that `maker` has."""

    maker: SampleMaker
    rows: Integers  # (H,)
    audio: Audio
    classes: int
    batch: int = 32

    def measure(self, attempt: Attempt, training: Training, step: int) -> float:
        """Emit the loss and the scores, and return the loss. Called by every rank."""
        scores = self.score(training)
        attempt.emit(Evaluated(attempt.number, step, scores.loss, scores.clips))
        metric = "mean_average_precision" if self.audio.multi_label else "accuracy"
        for name, value in (("probe", scores.probe), ("knn", scores.neighbours)):
            if value is not None:
                attempt.emit(Measured(attempt.number, step, name, metric, value, scores.labelled))
        return scores.loss

    @torch.no_grad()
    def score(self, training: Training) -> ProbeScores:
        """The scores, the same on every rank. Every rank embeds its part, and each calls the model equally often."""
        world, device = training.world, training.device
        model = parallel.unwrap(training.model)
        assert isinstance(model, AudioModel), "only a run on audio measures clips"
        chunks = np.split(np.arange(len(self.rows)), range(self.batch, len(self.rows), self.batch))
        width = self.audio.encoder.width + 1  # and whether it could be read and has a label
        # Each rank fills other rows: the sum is the whole.
        found = torch.zeros(len(self.rows), width, dtype=torch.float64, device=device.torch)  # (H, C + 1)
        sums = torch.zeros(2, dtype=torch.float64, device=device.torch)  # loss, clips that count
        for chunk, counts in share(chunks, world.rank, world.size):
            batch = self.read_centres(self.rows[chunk])
            made = make_micro_batch(batch, self.audio, self.classes, seed=0)
            loss = audio_loss(model, made, device)  # ()
            embedded = embed(model, made.log_mels, device)  # (B, C)
            if counts:
                sums += torch.stack([loss.double(), torch.tensor(made.labelled_tokens).to(sums)])
                labelled = (made.labels >= 0).any(1, keepdim=True).to(embedded)  # (B, 1)
                found[torch.from_numpy(chunk).to(device.torch)] = torch.cat((embedded, labelled), 1).double()
        total, clips = world.sum(sums).tolist()
        labels = torch.from_numpy(pad_labels([self.maker.table.read_labels(row) for row in self.rows.tolist()]))
        return self._judge(model, world.sum(found).cpu(), labels, total / max(1.0, clips), round(clips))

    def _judge(self, model: AudioModel, found: Tensor, labels: Tensor, loss: float, clips: int) -> ProbeScores:
        is_labelled = found[:, -1] > 0  # (H,)
        labelled = int(is_labelled.sum())
        if model.probe is None or not labelled:
            return ProbeScores(loss, clips, 0, None, None)
        embeddings, labels = found[is_labelled, :-1], labels[is_labelled]
        score: Callable[[Tensor, Tensor], float] = average_precision if self.audio.multi_label else accuracy
        voted = None
        if self.audio.probe.neighbours and labelled > 1:
            votes = vote_neighbours(embeddings, mark_labels(labels, self.classes), self.audio.probe.neighbours)
            voted = score(votes, labels)
        return ProbeScores(loss, clips, labelled, score(classify(model.probe, embeddings), labels), voted)

    def read_centres(self, rows: Integers) -> AudioBatch:
        """The batch with the centres in some rows. A clip that cannot be decoded is zeros, without a label."""
        mel = self.maker.mel
        log_mels = np.zeros((len(rows), mel.frames, mel.mels), dtype=np.float32)

        def read(at: int) -> SampleParts:
            try:
                return self.maker.make_centre(int(rows[at]), log_mels[at])
            except ClipError:
                return SampleParts(int(rows[at]), 0, (), ())

        with ThreadPoolExecutor(self.audio.threads) as pool:
            samples = list(pool.map(read, range(len(rows))))
        labels = pad_labels([one.labels for one in samples])
        frames = np.array([one.frames for one in samples])
        return AudioBatch(log_mels, labels, frames, rows, places=rows)


def embed(model: nn.Module, log_mels: Tensor, device: Device) -> Tensor:
    """Embeddings (B, C) fp32 for (B, F, M)."""
    with torch.no_grad(), device.autocast():
        embeddings: Tensor = model(log_mels.to(device.torch))
    return embeddings.float()


def classify(probe: nn.Linear, embeddings: Tensor) -> Tensor:
    """The linear probe's logits (H, classes) for embeddings (H, C), which it compares. Every rank calls it."""
    weight, bias = (
        (part.full_tensor() if isinstance(part, DTensor) else part).to(embeddings)
        for part in (probe.weight, probe.bias)
    )
    return F.linear(standardise(embeddings), weight, bias)


def vote_neighbours(embeddings: Tensor, marked: Tensor, neighbours: int) -> Tensor:
    """For each clip the votes from the nearest others, (H, classes). Shapes: (H, C), (H, classes).

    Near is by cosine, after each number in the embeddings has mean 0 and deviation 1.
    """
    directions = F.normalize(standardise(embeddings), dim=1)  # (H, C)
    likeness = (directions @ directions.T).fill_diagonal_(-torch.inf)  # (H, H)
    near, which = likeness.topk(min(neighbours, len(embeddings) - 1), dim=1)  # (H, k) each
    return ((near / _SHARPNESS).softmax(1).unsqueeze(-1) * marked.to(near)[which]).sum(1)


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """How many clips have their highest score (H, classes) at the label (H, L), as a fraction."""
    return (scores.argmax(1) == labels[:, 0]).double().mean().item()


def average_precision(scores: Tensor, labels: Tensor) -> float:
    """The mean over the classes that occur: precision at each clip that has the class."""
    marked = mark_labels(labels, scores.shape[1]).double()  # (H, classes)
    ordered = marked.gather(0, scores.argsort(dim=0, descending=True, stable=True))  # (H, classes)
    ranks = torch.arange(1, len(scores) + 1, dtype=torch.float64).unsqueeze(1)  # (H, 1)
    precision = (ordered.cumsum(0) / ranks * ordered).sum(0)  # (classes,)
    count = marked.sum(0)  # (classes,)
    return (precision[count > 0] / count[count > 0]).mean().item()
