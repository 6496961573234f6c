"""Draws spectrograms with matplotlib (from the train extra). Opens no window."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from prime_train.core.errors import UserError
from prime_train.trainer.audio.clips import ClipError, read_crop
from prime_train.trainer.audio.log_mel import Floats, MelSettings, compute_log_mel
from prime_train.trainer.audio.tables import ClipTable

_PICTURED = 10


def can_draw() -> bool:
    """Whether there is a matplotlib."""
    return find_spec("matplotlib") is not None


def draw_spectrograms(table: ClipTable, path: Path, clip_s: float, mel: MelSettings) -> str:
    """Draw ten spectrograms, spread over all rows. Returns the path."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        fix = "install the extra train, or leave --picture out"
        raise UserError("there is no matplotlib", str(path), "a picture is drawn with it", fix) from error
    shown = list(_find_spectrograms(table, clip_s, mel))
    if not shown:
        what, why = (
            f"all {_PICTURED} clips cannot be decoded",
            "a picture shows clips that are spread over all rows",
        )
        raise UserError(what, str(path), why, "look at them: prime-train data audio scan PATH --decode")
    figure = Figure(figsize=(12, 1.7 * -(-len(shown) // 2)), layout="constrained")
    for number, (title, spectrogram) in enumerate(shown):
        axes = figure.add_subplot(-(-len(shown) // 2), 2, number + 1)
        axes.imshow(spectrogram.T, origin="lower", aspect="auto", cmap="magma", extent=(0, clip_s, 0, mel.mels))
        axes.set_title(title, fontsize=7)
        axes.tick_params(labelsize=6)
    try:
        figure.savefig(path, dpi=100)
    except (OSError, ValueError) as error:
        raise UserError(
            f"it cannot be written: {error}", str(path), "--picture names it", "name a .png file"
        ) from error
    return str(path)


def _find_spectrograms(table: ClipTable, clip_s: float, mel: MelSettings) -> Iterator[tuple[str, Floats]]:
    for row in np.unique(np.linspace(0, table.rows - 1, _PICTURED).astype(int)).tolist():
        try:
            crop = read_crop(table.read_clip(row), mel.sample_rate, round(clip_s * mel.sample_rate), 0.5)
        except ClipError:
            continue
        labels = ", ".join(map(str, table.read_labels(row))) or "none"
        if len(spectrogram := compute_log_mel(crop, mel)):
            yield f"row {row}, label {labels}", spectrogram
