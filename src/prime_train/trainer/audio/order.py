"""Which row a sample has, and where the crop begins: functions of seed, epoch and place alone. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prime_train.trainer.data.order import ROUNDS, Hashes, Integers, permute
from prime_train.trainer.draws import EPOCH, ROWS, generator

_CROP, _OTHER = 0, 1  # purposes of a random number of a row


@dataclass(frozen=True, slots=True)
class ClipOrder:
    """The endless sequence of samples over `rows` rows: each epoch is a permutation of all rows.

    `blocks`: the first row of each part of the rows, and their number at the end. With more than one part, an epoch
    takes the parts one after the other in a random order and permutes the rows inside each, so that a network disk
    reads one file after the other. One part = every row of all files is drawn from everywhere.
    """

    rows: int
    seed: int
    blocks: tuple[int, ...] = ()

    def find_rows(self, places: Integers) -> Integers:
        """The rows (n,) at these places of the sequence, (n,) from 0."""
        epochs, within = np.divmod(places, self.rows)
        found = np.empty_like(within)
        for epoch in np.unique(epochs):
            mine = epochs == epoch
            found[mine] = self._of_epoch(int(epoch), within[mine])
        return found

    def _of_epoch(self, epoch: int, within: Integers) -> Integers:
        if len(self.blocks) <= 2:
            return permute(within, self.rows, _keys(self.seed, epoch, 0))
        first = np.asarray(self.blocks[:-1])
        sizes = np.diff(self.blocks)
        order = permute(np.arange(len(sizes)), len(sizes), _keys(self.seed, epoch, 0))
        ends = np.cumsum(sizes[order])  # of each block of this epoch, in places
        at = np.searchsorted(ends, within, side="right")
        found = np.empty_like(within)
        for turn in np.unique(at):
            mine, block = at == turn, int(order[turn])
            inside = within[mine] - (ends[turn] - sizes[block])
            found[mine] = first[block] + permute(inside, int(sizes[block]), _keys(self.seed, epoch, 1 + block))
        return found

    def epoch_of(self, place: int) -> int:
        return place // self.rows

    def crop_at(self, place: int, row: int) -> float:
        """Where the crop begins: 0 up to 1, by the room in the clip."""
        return _draw(self.seed, _CROP, self.epoch_of(place), row)

    def other_row(self, place: int, tried: int) -> int:
        """The row that takes the place of a broken one, after `tried` tries."""
        return int(_draw(self.seed, _OTHER, place, tried) * self.rows)


def _keys(seed: int, epoch: int, part: int) -> Hashes:
    return generator(seed, EPOCH, part, epoch).integers(0, 2**62, size=ROUNDS, dtype=np.uint64)


def _draw(seed: int, *purpose: int) -> float:
    """A random number, 0 up to 1, from a counter: no generator has a state that a resume would need."""
    return float(generator(seed, ROWS, *purpose).random())
