"""Drafts the run.toml of an encoder on audio, from what its clips are. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prime_train.choose.draft import Draft, Setting

_PATCH = 16  # frames; the default of audio.encoder.patch
_RATE_HZ, _MELS, _FEW_MELS = 32_000, 128, 64  # bird song has its sounds up to 16 kHz, speech up to 8 kHz
_CROP_S = 5.0
_EPOCHS, _MOST_STEPS, _LEAST_STEPS = 30, 50_000, 100
_HELD_OUT_CLIPS = 200  # so that a probe's accuracy has an error of some percent


class ClipsSeen(NamedTuple):
    """What clips are, as a scan of them shows it."""

    rows: int
    median_s: float
    rate_hz: int  # the commonest
    labels: int  # how many different ones there are
    most_labels: int  # of one clip
    audio_field: str = "audio"
    label_field: str | None = "label"


class AudioWishes(NamedTuple):
    """What the user wants. `seen` is None for a data set that is not here; `gpus` is 0 for a run on the CPU.

    `gpu`: the kind, as `--gpus` names it.
    """

    name: str
    path: str
    subset: str = ""
    seen: ClipsSeen | None = None
    gpus: int = 0
    gpu: str = ""
    machines: int = 1
    steps: int | None = None


def draft_audio(wishes: AudioWishes) -> Draft:
    """The settings of a run that trains an encoder on the clips, each with the reason for its value."""
    return Draft((*_run(wishes), *_audio(wishes), *_data(wishes), *_learning(wishes)))


def _run(wishes: AudioWishes) -> Iterator[Setting]:
    yield Setting("run.name", wishes.name)
    yield Setting("run.kind", "audio")
    why = "as asked for" if wishes.steps else f"about {_EPOCHS} epochs, from {_LEAST_STEPS} to {_MOST_STEPS:,} steps"
    if wishes.seen is None and not wishes.steps:
        why = "the number of clips is not known here"
    yield Setting("run.max_steps", _steps(wishes), why)


def _audio(wishes: AudioWishes) -> Iterator[Setting]:
    seen = wishes.seen
    if seen is None:
        yield Setting("audio.objective", "supervised", "without labels: masked_autoencoder or lejepa")
        yield Setting("audio.label_field", "label", "its columns are not known here; BirdSet has ebird_code")
        return
    if seen.labels > 1:
        yield Setting("audio.objective", "supervised", f"the clips have {seen.labels:,} labels, counted at the start")
    else:
        yield Setting("audio.objective", "masked_autoencoder", "there are no labels to learn from")
    if seen.most_labels > 1:
        yield Setting("audio.multi_label", True, f"a clip has up to {seen.most_labels} labels")
    if seen.audio_field != "audio":
        yield Setting("audio.audio_field", seen.audio_field)
    if seen.label_field != "label":
        yield Setting("audio.label_field", seen.label_field or "")
    crop_s = _crop_s(seen)
    yield Setting("audio.clip_s", crop_s, f"half of the clips are longer than {seen.median_s:g} s")
    frames = 1 + int((crop_s - 0.025) / 0.01 + 1e-6)  # as rule AUD004 counts them
    yield Setting("audio.frames", -(-frames // _PATCH) * _PATCH, f"a crop has {frames}, and a patch {_PATCH}")
    if seen.rate_hz < _RATE_HZ:
        yield Setting("audio.sample_rate", seen.rate_hz, "what most of them have")
        yield Setting("audio.mels", _FEW_MELS, "more bands at this rate would be narrower than a bin of the spectrum")


def _crop_s(seen: ClipsSeen) -> float:
    return min(_CROP_S, max(0.5, int(seen.median_s * 2) / 2))


def _data(wishes: AudioWishes) -> Iterator[Setting]:
    yield Setting("[[data.sources]].kind", "audio")
    yield Setting("[[data.sources]].path", wishes.path)
    if wishes.subset:
        yield Setting("[[data.sources]].subset", wishes.subset)
    yield Setting("data.loader_workers", 4 if wishes.gpus else 1, "a core each; more where a step waits for data")


def _learning(wishes: AudioWishes) -> Iterator[Setting]:
    yield Setting("batch.micro_batch", _micro_batch(wishes), "clips; more where memory is left")
    ranks = max(1, wishes.gpus)
    if ranks > 1:
        yield Setting("parallel.processes", ranks // wishes.machines, "one for each GPU")
    if wishes.machines > 1:
        yield Setting("parallel.machines", wishes.machines)
    steps = _steps(wishes)
    yield Setting("optim.lr", 5e-4, "usual for a small transformer from random weights")
    yield Setting("optim.weight_decay", 0.05)
    yield Setting("schedule.kind", "cosine")
    yield Setting("schedule.warmup_steps", max(1, min(2000, steps // 20)))
    interval = max(1, min(1000, steps // 10))
    yield Setting("checkpoint.interval_steps", interval)
    yield Setting("checkpoint.keep_last", 3)
    yield Setting("checkpoint.async", True)
    yield Setting("checkpoint.final", "hf", "the encoder as safetensors")
    yield Setting("eval.interval_steps", interval)
    yield Setting("eval.held_out_ratio", _held_out(wishes), f"about {_HELD_OUT_CLIPS} clips or more, at most a fifth")


def _held_out(wishes: AudioWishes) -> float:
    rows = wishes.seen.rows if wishes.seen is not None else 0
    return round(min(0.2, max(0.02, _HELD_OUT_CLIPS / rows)), 3) if rows else 0.02


def _micro_batch(wishes: AudioWishes) -> int:
    """A power of two, so small that an epoch has some steps."""
    wanted = 64 if wishes.gpus else 32
    if wishes.seen is None:
        return wanted
    most = int(wishes.seen.rows * (1 - _held_out(wishes))) // (4 * max(1, wishes.gpus))
    return max(1, min(wanted, 1 << (max(1, most).bit_length() - 1)))


def _steps(wishes: AudioWishes) -> int:
    if wishes.steps:
        return wishes.steps
    if wishes.seen is None:
        return _MOST_STEPS
    batch = _micro_batch(wishes) * max(1, wishes.gpus)
    return max(_LEAST_STEPS, min(_MOST_STEPS, int(_EPOCHS * wishes.seen.rows / batch)))
