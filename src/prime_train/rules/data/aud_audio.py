"""Runs on audio whose sizes, labels or sources do not go together. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, lacks, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.audio import Audio

_CHIRPS = 12  # classes. Source: trainer/audio/chirps.py
_WINDOW_S, _HOP_S = 0.025, 0.01  # of a frame. Source: trainer/audio/log_mel.py
_MOST_PADDING = 0.5  # of a spectrogram


@rule("AUD001", Severity.ERROR)
def encoder_does_not_fit(run: RunSpec) -> Problems:
    """Patches must cover the spectrogram, and a head must have a multiple of 4 numbers.

    rotary positions of time and pitch take a quarter of a head for each half of a pair

    Source: trainer/audio/learning/patch_encoder.py.

    Bad (audio):
        [audio]
        frames = 500
    Bad (audio):
        [audio.encoder]
        width = 200
    Bad (audio):
        [audio.encoder]
        heads = 32
    Bad (audio):
        [audio]
        objective = "masked_autoencoder"
        [audio.masked_autoencoder]
        width = 100
    Good (audio):
        [audio]
        frames = 256
        clip_s = 2.5
        [audio.encoder]
        width = 256
        heads = 4
    """
    if run.audio is not None:
        yield from _find_misfits(run.audio)


def _find_misfits(audio: Audio) -> Iterator[Problem]:
    patch, decoder = audio.encoder.patch, audio.masked_autoencoder
    for name, size in (("frames", audio.frames), ("mels", audio.mels)):
        if size % patch:
            what = f"{size} does not divide by `audio.encoder.patch` {patch}"
            yield suggest(f"audio.{name}", what, max(1, size // patch) * patch)
    parts = [("encoder", audio.encoder.width, audio.encoder.heads)]
    if audio.objective == "masked_autoencoder":
        parts.append(("masked_autoencoder", decoder.width, decoder.heads))
    for table, width, heads in parts:
        if width % (4 * heads):
            what = f"{width} / {heads} heads is not a multiple of 4"
            yield suggest(f"audio.{table}.width", what, max(1, width // (4 * heads)) * 4 * heads)


@rule("AUD002", Severity.ERROR)
def sources_of_clips_wrong(run: RunSpec) -> Problems:
    """A run on audio reads each source once, and no other run reads clips.

    a clip that two sources have would be held out and trained on, and text has no clips

    With `data.sampling_probs` each batch has clips from all sources, so `audio.block_shuffle` reads no file after
    the other.

    Source: trainer/audio/sources.py, trainer/audio/order.py.

    Bad (audio):
        [[data.sources]]
        kind = "audio"
        path = "clips/"
        [[data.sources]]
        kind = "audio"
        path = "clips"
    Bad (audio):
        [audio]
        block_shuffle = 8
        [data]
        sampling_probs = [0.5, 0.5]
        [[data.sources]]
        kind = "audio"
        path = "clips/"
        [[data.sources]]
        kind = "chirps"
    Bad:
        [[data.sources]]
        kind = "chirps"
    Bad (audio):
        [[data.sources]]
        kind = "audio"
    Good (audio):
        [data]
        sampling_probs = [0.8, 0.2]
        [[data.sources]]
        kind = "audio"
        path = "clips/"
        [[data.sources]]
        kind = "audio"
        path = "more.arrow"
    """
    sources = run.data.sources
    if run.audio is None:
        for number, source in enumerate(sources):
            if source.kind in ("audio", "chirps"):
                what = f"clips have no text, and `run.kind` is {run.run.kind}"
                yield Problem(f"data.sources.{number}.kind", what, fix='`run.kind` = "audio", or a source of text')
        return
    if run.audio.block_shuffle and run.data.sampling_probs is not None:
        what = f"{run.audio.block_shuffle}, and `data.sampling_probs` takes clips from all sources for each batch"
        yield suggest("audio.block_shuffle", what, 0)
    earlier: dict[tuple[str, str | None, str], int] = {}
    for number, source in enumerate(sources):
        if source.kind != "audio":
            continue
        if not source.path:
            yield lacks(f"data.sources.{number}", "audio", "path", 'path = "clips/"')
            continue
        first = earlier.setdefault((source.path.rstrip("/"), source.subset, source.split), number)
        if first != number:
            what = f"{source.path} is `data.sources.{first}` already"
            yield Problem(
                f"data.sources.{number}.path", what, fix="take one out; `data.sampling_probs` weighs the other"
            )


@rule("AUD003", Severity.ERROR)
def labels_do_not_fit(run: RunSpec) -> Problems:
    """A supervised run needs labels, and a class for each of them.

    the last layer has an output for each label from 0 to classes - 1

    The labels of files are counted when the run starts.

    Source: trainer/audio/learning/supervised.py.

    Bad (audio):
        [audio]
        label_field = ""
    Bad (audio):
        [audio]
        classes = 10
    Good (audio):
        [audio]
        objective = "lejepa"
        label_field = ""
    """
    audio = run.audio
    if audio is None:
        return
    if audio.objective == "supervised" and not audio.label_field:
        yield suggest("audio.label_field", "it is empty, and `audio.objective` is supervised", "label")
    elif (
        audio.classes is not None
        and audio.classes < _CHIRPS
        and any(source.kind == "chirps" for source in run.data.sources)
    ):
        yield suggest("audio.classes", f"{audio.classes}, and chirps have {_CHIRPS} labels", _CHIRPS)


@rule("AUD004", Severity.WARNING)
def crop_and_spectrogram_differ(run: RunSpec) -> Problems:
    """The crop should fill the spectrogram: frames are 10 ms apart.

    frames beyond the spectrogram are decoded and cut off, and padding is computed like sound

    Source: trainer/audio/log_mel.py, write_sample.

    Bad (audio):
        [audio]
        clip_s = 10.0
    Bad (audio):
        [audio]
        clip_s = 2.0
    Good (audio):
        [audio]
        clip_s = 2.5
        frames = 256
    """
    audio = run.audio
    if audio is None:
        return
    frames = 0 if audio.clip_s < _WINDOW_S else 1 + int((audio.clip_s - _WINDOW_S) / _HOP_S + 1e-6)
    whole = -(-frames // audio.encoder.patch) * audio.encoder.patch
    if frames > audio.frames:
        what = f"{audio.frames}, and a crop of `audio.clip_s` {audio.clip_s:g} has {frames} frames"
        yield suggest("audio.frames", what, whole)
    elif frames < (1 - _MOST_PADDING) * audio.frames:
        what = f"{audio.frames}, and a crop of `audio.clip_s` {audio.clip_s:g} has only {frames} frames"
        yield suggest("audio.frames", what, max(whole, audio.encoder.patch))


@rule("AUD005", Severity.NOTE)
def workers_are_not_measured(run: RunSpec) -> Problems:
    """`loader_workers = "auto"` is 4 in a run on audio.

    how fast workers decode clips is not measured, and each has `audio.threads`

    Source: spec/data.py, planned_workers.

    Bad (audio):
        [data]
        loader_workers = "auto"
    Good (audio):
        [data]
        loader_workers = 4
    """
    if run.audio is not None and run.data.loader_workers == "auto":
        what = f'"auto", and {run.data.planned_workers} workers start, for short and for long steps'
        yield suggest("data.loader_workers", what, run.data.planned_workers)
