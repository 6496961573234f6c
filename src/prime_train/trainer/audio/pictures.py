"""Draws spectrograms with matplotlib (from the train extra). Opens no window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from prime_train.core.errors import UserError
from prime_train.trainer.audio.clip_files import NO_LABEL
from prime_train.trainer.audio.clips import ClipError, read_crop
from prime_train.trainer.audio.log_mel import Floats, MelSettings, compute_log_mel
from prime_train.trainer.audio.samples import CENTRE
from prime_train.trainer.audio.tables import ClipTable
from prime_train.trainer.data.order import Integers

_PICTURED = 10
_MOST_TRIED = 100  # rows that are decoded, where some are broken
_MOST_FILES = 50  # whose labels are read


def can_draw() -> bool:
    """Whether there is a matplotlib."""
    return find_spec("matplotlib") is not None


def draw_spectrograms(table: ClipTable, path: Path, clip_s: float, mel: MelSettings) -> str:
    """Draw ten spectrograms, of different labels where there are so many. Returns the path."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        fix = "install the extra train, or leave --picture out"
        raise UserError("there is no matplotlib", str(path), "a picture is drawn with it", fix) from error
    shown = _find_spectrograms(table, clip_s, mel)
    if not shown:
        what, why = "no clip can be decoded", f"it tried up to {_MOST_TRIED}, spread over all rows"
        raise UserError(what, str(path), why, "look at them: prime-train data audio scan PATH --decode")
    figure = Figure(figsize=(12, 1.7 * -(-len(shown) // 2)), layout="constrained")
    for number, (title, spectrogram) in enumerate(shown):
        axes = figure.add_subplot(-(-len(shown) // 2), 2, number + 1)
        extent = (0, len(spectrogram) * mel.hop / mel.sample_rate, 0, mel.mels)
        axes.imshow(spectrogram.T, origin="lower", aspect="auto", cmap="magma", extent=extent)
        axes.set_xlim(0, clip_s)  # a clip that is shorter than a crop leaves the rest empty
        axes.set_title(title, fontsize=7)
        axes.tick_params(labelsize=6)
    try:
        figure.savefig(path, dpi=100)
    except (OSError, ValueError) as error:
        raise UserError(
            f"it cannot be written: {error}", str(path), "--picture names it", "name a .png file"
        ) from error
    return str(path)


def _find_spectrograms(table: ClipTable, clip_s: float, mel: MelSettings) -> list[tuple[str, Floats]]:
    """Up to ten, each with a title, sorted by their labels."""
    found: list[tuple[tuple[int, ...], int, Floats]] = []
    for row in itertools.islice(choose_rows(table), _MOST_TRIED):
        try:
            crop = read_crop(table.read_clip(row), mel.sample_rate, round(clip_s * mel.sample_rate), CENTRE)
        except ClipError:
            continue
        if len(spectrogram := compute_log_mel(crop, mel)):
            found.append((table.read_labels(row), row, spectrogram))
        if len(found) == _PICTURED:
            break
    found.sort(key=lambda one: one[:2])
    return [(f"label {', '.join(map(str, labels)) or 'none'}, row {row}", shown) for labels, row, shown in found]


def choose_rows(table: ClipTable) -> Iterator[int]:
    """Rows with as many different labels as there are, then further ones for each label. None comes twice."""
    rows = _group_rows(table)
    labels = sorted(rows)
    first = [labels[at] for at in np.unique(np.linspace(0, len(labels) - 1, _PICTURED).astype(int)).tolist()]
    order = [*first, *(label for label in labels if label not in first)]
    seen = set()
    for turn, label in itertools.product(range(_PICTURED), order):
        row = int(rows[label][turn * len(rows[label]) // _PICTURED])
        if row not in seen:
            seen.add(row)
            yield row


def _group_rows(table: ClipTable) -> dict[int, Integers]:
    """Label -> rows. With more files than it reads, it draws some: evenly spaced ones may have few of the labels."""
    count = len(table.parts)
    drawn = np.random.default_rng(0).permutation(count)[:_MOST_FILES]
    parts = np.sort(drawn).tolist()
    rows, labels = table.list_labels(parts)
    order = np.argsort(labels, kind="stable")
    numbers, begins = np.unique(labels[order], return_index=True)
    found = dict(zip(numbers.tolist(), np.split(rows[order], begins[1:]), strict=False))
    starts = (0, *table.ends)
    every = np.concatenate([np.arange(starts[part], starts[part + 1]) for part in parts])
    without = np.setdiff1d(every, rows)
    return found | ({NO_LABEL: without} if len(without) else {})
