"""Which row a sample has, and where the crop begins: functions of seed, epoch and place alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
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

    With `quotas` each part is a source, and an epoch has so many samples from each, in any order. Every source has an
    endless sequence for itself, where each turn is a permutation, so a small source begins again within an epoch.
    """

    rows: int
    seed: int
    blocks: tuple[int, ...] = ()
    quotas: tuple[int, ...] = ()  # samples of each part in an epoch, with the sum `rows`

    def find_rows(self, places: Integers) -> Integers:
        """The rows (n,) at these places of the sequence, (n,) from 0."""
        return self._locate(places)[0]

    def _locate(self, places: Integers) -> tuple[Integers, Integers]:
        """The rows (n,), and how often each source was read before, (n,)."""
        epochs, within = np.divmod(places, self.rows)
        found, turns = np.empty_like(within), epochs.copy()
        for epoch in np.unique(epochs):
            mine = epochs == epoch
            if self.quotas:
                found[mine], turns[mine] = self._mix(int(epoch), within[mine])
            else:
                found[mine] = self._of_epoch(int(epoch), within[mine])
        return found, turns

    def _mix(self, epoch: int, within: Integers) -> tuple[Integers, Integers]:
        """Rows and turns (n,) at places of an epoch that takes `quotas` from the sources."""
        ends = np.cumsum(self.quotas)
        slots = permute(within, self.rows, _keys(self.seed, epoch, 0))
        sources = np.searchsorted(ends, slots, side="right")
        found, turns = np.empty_like(within), np.empty_like(within)
        for source in np.unique(sources):
            mine = sources == source
            first, end, quota = self.blocks[source], self.blocks[source + 1], self.quotas[source]
            # The place in the endless sequence of the source, which earlier epochs began.
            own = epoch * quota + slots[mine] - (ends[source] - quota)
            turns[mine], inside = np.divmod(own, end - first)
            for turn in np.unique(turns[mine]):
                now = turns[mine] == turn
                keys = _keys(self.seed, int(turn), 1 + int(source))
                inside[now] = permute(inside[now], end - first, keys)
            found[mine] = first + inside
        return found, turns

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
        """How often all rows were read before; with quotas, those of the source at this place."""
        return int(self._locate(np.array([place]))[1][0]) if self.quotas else place // self.rows

    def crop_at(self, place: int, row: int) -> float:
        """Where the crop begins: 0 up to 1, by the room in the clip."""
        return _draw(self.seed, _CROP, self.epoch_of(place), row)

    def other_row(self, place: int, tried: int, row: int) -> int:
        """The row that replaces the broken `row` after `tried` tries. With quotas it is in the same source."""
        first, end = 0, self.rows
        if self.quotas:
            source = int(np.searchsorted(self.blocks, row, side="right"))
            first, end = self.blocks[source - 1], self.blocks[source]
        return first + int(_draw(self.seed, _OTHER, place, tried) * (end - first))


def count_quotas(rows: int, probs: Sequence[float]) -> tuple[int, ...]:
    """The samples of each source in an epoch with `rows` samples: the shares, to within one sample."""
    exact = rows * np.asarray(probs) / sum(probs)
    quotas = np.floor(exact).astype(np.int64)
    largest = np.argsort(quotas - exact, kind="stable")  # the largest remainders first
    quotas[largest[: rows - int(quotas.sum())]] += 1
    return tuple(quotas.tolist())


def _keys(seed: int, epoch: int, part: int) -> Hashes:
    return generator(seed, EPOCH, part, epoch).integers(0, 2**62, size=ROUNDS, dtype=np.uint64)


def _draw(seed: int, *purpose: int) -> float:
    """A random number, 0 up to 1, from a counter: no generator has a state that a resume would need."""
    return float(generator(seed, ROWS, *purpose).random())
