"""One sample: a row and a crop of it as a normalised log-mel spectrogram, with labels. Counts broken clips."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from prime_train.core.errors import ExitCode, UserError
from prime_train.spec.audio import Seek
from prime_train.trainer.audio.clip_files import Columns, Labels
from prime_train.trainer.audio.clips import ClipError, read_crop
from prime_train.trainer.audio.log_mel import Floats, MelSettings, compute_log_mel, write_sample
from prime_train.trainer.audio.order import ClipOrder
from prime_train.trainer.audio.tables import ClipTable

MOST_TRIES = 16  # per sample, until a row can be decoded
CENTRE = 0.5


class BrokenClip(NamedTuple):
    """A row that was left out, and why."""

    row: int
    where: str  # "train-00003.arrow row 17"
    why: str


class SampleParts(NamedTuple):
    """What a sample is made of, beside the spectrogram."""

    row: int
    frames: int  # of the spectrogram that are no padding
    labels: Labels
    broken: tuple[BrokenClip, ...]


@dataclass(frozen=True)
class SampleMaker:
    """Makes the sample of any place. The same arguments give the same sample in every process."""

    table: ClipTable
    order: ClipOrder
    mel: MelSettings
    clip_s: float = 5.0
    columns: Columns = field(default_factory=Columns)
    held_out: float = 0.0  # of the rows below the path; `table` has the others
    seek: Seek = "exact"

    @property
    def samples(self) -> int:
        """Samples in a crop."""
        return round(self.clip_s * self.mel.sample_rate)

    def make(self, place: int, row: int, out: Floats) -> SampleParts:
        """Write the spectrogram (frames, mels) of a place into `out`. Raises UserError if no row can be decoded.

        `row`: of the order. Another row takes the place of a broken one, by seed and place alone.
        """
        broken: list[BrokenClip] = []
        for tried in range(MOST_TRIES):
            chosen = row if tried == 0 else self.order.other_row(place, tried, row)
            try:
                frames = self._write(chosen, self.order.crop_at(place, chosen), out)
            except ClipError as error:
                broken.append(BrokenClip(chosen, self.table.describe(chosen), str(error)))
                continue
            return SampleParts(chosen, frames, self.table.read_labels(chosen), tuple(broken))
        first = broken[0]
        raise UserError(
            what=f"{MOST_TRIES} clips in a row cannot be used; the first: {first.why}",
            where=first.where,
            why="so many broken clips are no accident of a few rows",
            fix="look at them: prime-train data audio scan PATH",
            exit_code=ExitCode.OUT_OF_REACH,
        )

    def make_centre(self, row: int, out: Floats) -> SampleParts:
        """The sample from the middle of a row, for an evaluation. Raises ClipError."""
        frames = self._write(row, CENTRE, out)
        return SampleParts(row, frames, self.table.read_labels(row), ())

    def _write(self, row: int, where: float, out: Floats) -> int:
        signal = read_crop(self.table.read_clip(row), self.mel.sample_rate, self.samples, where, self.seek)
        log_mel = compute_log_mel(signal, self.mel)
        if not len(log_mel):
            raise ClipError(f"it has {len(signal):,} samples, less than one window of {self.mel.window}")
        return write_sample(log_mel, self.mel, out)
