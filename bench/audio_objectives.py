"""Trains an encoder with each objective on clips of twelve classes of chirps, and measures what it has learned.

    python bench/audio_objectives.py [--factor 1] [--objective lejepa ...]

Each objective has a process with one thread and `--factor` x its SECONDS of CPU time for its steps, which are those of
the trainer's loop. Then the encoder is frozen, and a linear classifier learns from its embeddings of the training
clips. The score is that of clips whose sounds no encoder and no classifier has seen, beside that of the same encoder
before training.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
import torch.nn.functional as F
from torch import Tensor

from prime_train import spec
from prime_train.spec.audio import Audio, AudioEncoder, AudioObjective, Lejepa, MaskedAutoencoder
from prime_train.trainer.audio import chirps
from prime_train.trainer.audio.batches import AudioBatch
from prime_train.trainer.audio.learning.audio_model import AudioModel, audio_loss, build_audio
from prime_train.trainer.audio.learning.micro_batch import make_micro_batch
from prime_train.trainer.audio.learning.probes import accuracy, classify, embed, vote_neighbours
from prime_train.trainer.audio.learning.supervised import mark_labels
from prime_train.trainer.audio.log_mel import MelSettings, compute_log_mel, write_sample
from prime_train.trainer.audio.order import ClipOrder
from prime_train.trainer.device import Device
from prime_train.trainer.loops.step import Training, adamw, take_step
from prime_train.trainer.parallel import World

CPU = Device(torch.device("cpu"), "CPU", "fp32", None)
MEL = MelSettings(frames=192, mels=64)
CLIPS, HELD_OUT, CLIP_S = 2400, 480, 1.93
BATCH = 64
SECONDS = {"supervised": 40.0, "masked_autoencoder": 60.0, "lejepa": 60.0}
LR = {"supervised": 1e-3, "masked_autoencoder": 1.5e-3, "lejepa": 1.5e-3}
AUDIO = Audio(
    clip_s=CLIP_S,
    frames=MEL.frames,
    mels=MEL.mels,
    encoder=AudioEncoder(layers=2, width=64, heads=4),
    masked_autoencoder=MaskedAutoencoder(layers=1, width=48, heads=3),
    lejepa=Lejepa(slices=64, projector_width=128, projection=16),
)
OBJECTIVES: tuple[AudioObjective, ...] = ("supervised", "masked_autoencoder", "lejepa")
CHANCE = 1 / chirps.CLASSES
MARGIN = 0.05  # over the encoder before training
LEAST = {"supervised": 0.95, "masked_autoencoder": 3 * CHANCE, "lejepa": 3 * CHANCE}
MOST_CPU_S = 600.0


@dataclass(frozen=True, slots=True)
class Chirps:
    """Spectrograms (N, frames, mels) of clips, their labels (N,) and whether they are held out (N,)."""

    log_mels: Any
    labels: Any
    held_out: Any


def make_chirps(path: Path) -> None:
    """Generated clips, which are not compressed: what codecs do is measured by bench/audio.py."""
    log_mels = np.zeros((CLIPS + HELD_OUT, MEL.frames, MEL.mels), dtype=np.float32)
    for row, out in enumerate(log_mels):
        clip = chirps.make_clip(row % chirps.CLASSES, CLIP_S, MEL.sample_rate, np.random.default_rng(row))
        write_sample(compute_log_mel(clip, MEL), MEL, out)
    rows = np.arange(CLIPS + HELD_OUT)
    np.savez(path, log_mels=log_mels, labels=rows % chirps.CLASSES, held_out=rows >= CLIPS)


def learn(found: Chirps, audio: Audio, seconds: float, seed: int) -> tuple[AudioModel, list[float]]:
    """The model after so many CPU-seconds of steps, and the mean losses of each tenth of them."""
    model = build_audio(audio, chirps.CLASSES, seed)
    training = Training(model, adamw(model, spec.Optim(weight_decay=0.05)), World(0, 1), CPU, clip_norm=1.0)
    mine = np.flatnonzero(~found.held_out)
    order = ClipOrder(len(mine), seed)
    losses: list[float] = []
    began_s, used = time.process_time(), 0.0
    while used < 1:
        places = np.arange(BATCH) + BATCH * len(losses)
        rows = mine[order.find_rows(places)]
        labels = found.labels[rows].reshape(-1, 1)
        batch = AudioBatch(found.log_mels[rows], labels, np.full(BATCH, MEL.frames), rows, places)
        # Constant for the first half, then down to a twentieth.
        lr = LR[audio.objective] * min(1.0, (len(losses) + 1) / 20) * min(1.0, 2.05 - 2 * used)
        losses.append(take_step(training, [make_micro_batch(batch, audio, chirps.CLASSES, seed)], lr, audio_loss).loss)
        used = (time.process_time() - began_s) / seconds
    return model, losses


def embed_all(model: AudioModel, log_mels: Any) -> Tensor:
    parts = [embed(model, torch.from_numpy(part), CPU) for part in np.array_split(log_mels, len(log_mels) // BATCH)]
    return torch.cat(parts)


def probe(model: AudioModel, found: Chirps) -> dict[str, float]:
    """Held-out accuracy of a linear classifier on the frozen encoder, of the neighbours, and of the trainer's probe."""
    embeddings, labels = embed_all(model, found.log_mels), torch.from_numpy(found.labels)
    held = torch.from_numpy(found.held_out)
    embeddings = (embeddings - embeddings[~held].mean(0)) / (embeddings[~held].std(0) + 1e-6)
    weight = torch.zeros(model.width, chirps.CLASSES, requires_grad=True)
    bias = torch.zeros(chirps.CLASSES, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def measure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(embeddings[~held] @ weight + bias, labels[~held]) + 1e-3 * weight.square().sum()
        torch.autograd.backward(loss)
        return loss

    optimizer.step(measure)  # type: ignore[no-untyped-call]
    wanted = labels[held].unsqueeze(1)
    votes = vote_neighbours(embeddings[held], mark_labels(wanted, chirps.CLASSES), 10)
    assert model.probe is not None
    with torch.no_grad():
        scores = {
            "probe": embeddings[held] @ weight + bias,
            "knn": votes,
            "online": classify(model.probe, embeddings[held]),
        }
    return {name: round(accuracy(score, wanted), 4) for name, score in scores.items()}


def measure(path: Path, objective: AudioObjective, factor: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    read = np.load(path)
    found = Chirps(read["log_mels"], read["labels"], read["held_out"])
    audio = replace(AUDIO, objective=objective)
    untrained = probe(build_audio(audio, chirps.CLASSES, 1), found)
    model, losses = learn(found, audio, factor * SECONDS[objective], seed=1)
    scores = probe(model, found) | {f"random_{name}": untrained[name] for name in ("probe", "knn")}
    tenths = [round(float(np.mean(part)), 4) for part in np.array_split(losses, 10)]
    return scores | {"steps": len(losses), "clips": BATCH * len(losses), "losses": tenths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--objective", nargs="+", default=list(OBJECTIVES), choices=OBJECTIVES)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.child, given.objective[0], given.factor)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chirps.npz"
        make_chirps(path)
        words = [sys.executable, __file__, f"--child={path}", f"--factor={given.factor}", "--objective"]
        children = [subprocess.Popen([*words, name], stdout=subprocess.PIPE) for name in given.objective]
        answers = [json.loads(child.communicate()[0]) for child in children]
    used = os.times()
    cpu_s = used.user + used.system + used.children_user + used.children_system
    rows = [
        record.emit(name, [found["probe"]], unit="accuracy", least=round(LEAST[name], 4), **found)
        for name, found in zip(given.objective, answers, strict=True)
    ]
    rows.append(record.emit("CPU time of all, clips included", [cpu_s], most=MOST_CPU_S))
    record.write("audio_objectives", rows)
    missed = [row["what"] for row in rows[:-1] if row["probe"] < max(row["least"], row["random_probe"] + MARGIN)]
    missed += [row["what"] for row in rows[-1:] if cpu_s > row["most"]]
    sys.exit(f"missed: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
