"""Endless batches of log-mel spectrograms in a fixed order, with a position of one integer. NumPy, no torch.

`prime_train.audio.batches` is the way in for a script of one's own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from prime_train.core.errors import ExitCode, UserError
from prime_train.spec.audio import Seek
from prime_train.trainer.audio.clip_files import NO_LABEL, Columns
from prime_train.trainer.audio.clips import SEEKS
from prime_train.trainer.audio.log_mel import Floats, MelSettings
from prime_train.trainer.audio.order import ClipOrder, count_quotas
from prime_train.trainer.audio.samples import BrokenClip, SampleMaker, SampleParts
from prime_train.trainer.audio.tables import ClipTable, open_sources
from prime_train.trainer.audio.workers import AudioWorkers, make_here
from prime_train.trainer.data.order import Integers

VERSION = 1  # of a position
_SLOTS = 3  # of shared memory: one is read while two are written
_MEASURED = 200  # samples, before a share of broken ones counts
_SHOWN = 20
_WORDS = {"on_broken": ("skip", "fail"), "seek": SEEKS}
_LISTED = {"files": "the names of the files or their rows", "blocks": "block_shards", "quotas": "probs"}


@dataclass(frozen=True, slots=True)
class AudioBatch:
    """Samples of one batch. `labels` has NO_LABEL (-1) where a clip has fewer labels than another of the batch."""

    log_mels: Floats  # (B, frames, mels), normalised
    labels: Integers  # (B, L), L >= 1
    frames: Integers  # (B,), those that are no padding
    rows: Integers  # (B,) of the table
    places: Integers  # (B,) of the endless sequence of samples: two batches have none in common


class AudioBatches(Iterator[AudioBatch], AbstractContextManager["AudioBatches"]):
    """The batches of one rank. Rank r of R has the places r * B to r * B + B of each R * B places.

    `paths`: one source or several. `probs`: the share of each source; None = by the rows that each has.
    `held_out`: as a fraction, the rows that no batch has. `on_broken` = "fail" raises UserError at the first broken
    clip; "skip" takes another row, until more than `most_broken` of all samples were broken. `seek` = "fast": Opus and
    MP3 are decoded from a seek, and differ a little from the whole decoded clip.
    """

    def __init__(
        self,
        paths: Path | Sequence[Path],
        batch: int,
        *,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        workers: int = 1,
        threads: int = 2,
        clip_s: float = 5.0,
        mel: MelSettings | None = None,
        columns: Columns | None = None,
        block_shards: int = 0,
        on_broken: str = "skip",
        most_broken: float = 0.02,
        held_out: float = 0.0,
        probs: Sequence[float] | None = None,
        seek: Seek = "exact",
    ) -> None:
        _refuse_settings(batch=batch, rank=rank, ranks=ranks, workers=workers, threads=threads)
        _refuse_words(on_broken=on_broken, seek=seek)
        columns = columns or Columns()
        paths = (paths,) if isinstance(paths, Path) else tuple(paths)
        table, _ = open_sources(paths, columns).hold_out(held_out)
        blocks = table.starts[::block_shards] if block_shards else ()
        if blocks and blocks[-1] != table.rows:
            blocks = (*blocks, table.rows)
        order = ClipOrder(table.rows, seed, blocks) if probs is None else _mix_sources(table, seed, probs, block_shards)
        self._maker = SampleMaker(table, order, mel or MelSettings(), clip_s, columns, held_out, seek)
        self._batch, self._rank, self._ranks = batch, rank, ranks
        self._next = 0  # the place after the batches that were returned, of all ranks
        self._asked: deque[tuple[int, int]] = deque()  # (slot, place) of the batches that workers make
        self._workers = AudioWorkers(self._maker, paths, batch, _SLOTS, workers, threads) if workers else None
        self._on_broken, self._most_broken = on_broken, most_broken
        self._made = 0
        self.broken: Counter[BrokenClip] = Counter()

    @property
    def rows(self) -> int:
        return self._maker.table.rows

    def __next__(self) -> AudioBatch:
        """Raises UserError where too many clips are broken, or where a worker has ended."""
        if self._workers is None:
            log_mels, samples = make_here(self._maker, self._own_place(self._next), self._batch)
        else:
            self._ask_ahead(self._workers)
            slot, _ = self._asked.popleft()
            log_mels, samples = self._workers.take(slot)
        places = np.arange(self._batch, dtype=np.int64) + self._own_place(self._next)
        self._next += self._batch * self._ranks
        self._count_broken(samples)
        return AudioBatch(
            log_mels,
            pad_labels([one.labels for one in samples]),
            np.array([one.frames for one in samples]),
            np.array([one.row for one in samples]),
            places,
        )

    def _ask_ahead(self, workers: AudioWorkers) -> None:
        while len(self._asked) < _SLOTS:
            place = self._asked[-1][1] + self._batch * self._ranks if self._asked else self._next
            slot = (self._asked[-1][0] + 1) % _SLOTS if self._asked else 0
            workers.ask(slot, self._own_place(place), self._batch)
            self._asked.append((slot, place))

    def _own_place(self, place: int) -> int:
        return place + self._rank * self._batch

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches that were returned, the same on every rank. JSON-able."""
        order, table = self._maker.order, self._maker.table
        named = {"version": VERSION, "samples": self._next, "seed": order.seed, "rows": self.rows}
        mixed = {"quotas": list(order.quotas)} if order.quotas else {}
        return named | mixed | {"files": table.identity, "blocks": list(order.blocks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position. Raises UserError where it is that of another table or seed."""
        own = self.state_dict()
        for name in ("version", "seed", "rows", "files", "blocks", "quotas"):
            if state.get(name) != own.get(name):
                what = f"the position has {name} {state.get(name)}, and these clips have {own.get(name)}"
                if name in _LISTED:  # long lists, and a hash
                    what = f"the position has other {name} than these clips: {_LISTED[name]}"
                why = "a position counts the samples of one order of the same rows"
                fix = "give the same files and seed, or begin a run with another name"
                raise UserError(what, "data.sources", why, fix)
        samples = state.get("samples")
        if not isinstance(samples, int) or samples < 0:
            fix = "resume from another checkpoint"
            raise UserError(f"the position has samples {samples!r}", "data.sources", "it is no count", fix)
        while self._asked and self._workers is not None:  # what was made ahead belongs to the other position
            self._workers.take(self._asked.popleft()[0])
        self._next = samples

    def _count_broken(self, samples: Sequence[SampleParts]) -> None:
        self._made += len(samples)
        found = [broken for one in samples for broken in one.broken]
        self.broken.update(found)
        if not found:
            return
        times = sum(self.broken.values())
        if self._on_broken == "skip" and (self._made < _MEASURED or times <= self._most_broken * self._made):
            return
        listed = "; ".join(f"{one.where}: {one.why}" for one in list(self.broken)[:_SHOWN])
        raise UserError(
            what=f"{times:,} of {self._made:,} samples had a clip that cannot be used: {listed}",
            where="data.sources",
            why="on_broken is fail" if self._on_broken == "fail" else f"more than {self._most_broken:.1%} is too many",
            fix="look at all: prime-train data audio scan PATH; then repair the files, or raise most_broken",
            exit_code=ExitCode.OUT_OF_REACH,
        )

    def close(self) -> None:
        """End the workers. May be called twice."""
        if self._workers is not None:
            self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse_words(**given: str) -> None:
    """Raise UserError for a word that a setting does not have."""
    for name, word in given.items():
        if word not in _WORDS[name]:
            why = f"it is one of {', '.join(_WORDS[name])}"
            raise UserError(f"it is {word!r}", name, why, f'{name}="{_WORDS[name][0]}"')


def _refuse_settings(*, batch: int, rank: int, ranks: int, workers: int, threads: int) -> None:
    """Raise UserError for a setting with which no batch can be made."""
    least = {
        "batch": (batch, 1),
        "ranks": (ranks, 1),
        "rank": (rank, 0),
        "workers": (workers, 0),
        "threads": (threads, 1),
    }
    for name, (value, lowest) in least.items():
        if value < lowest:
            raise UserError(f"it is {value}", name, f"the least is {lowest}", f"{name}={lowest}")
    if rank >= ranks:
        raise UserError(f"it is {rank} of {ranks}", "rank", "ranks are numbered from 0", f"rank={ranks - 1}")


def _mix_sources(table: ClipTable, seed: int, probs: Sequence[float], block_shards: int) -> ClipOrder:
    """The order that takes a share from each source. Raises UserError."""
    starts = table.source_starts
    sizes, where = np.diff(starts), "data.sampling_probs"
    if block_shards:
        why = "each batch has clips from all sources, so no file is read after the other"
        raise UserError("it is given with audio.block_shuffle", where, why, "audio.block_shuffle = 0")
    if len(probs) != len(sizes) or min(probs) < 0 or not sum(probs) > 0:
        why = "each source is read with a share for itself"
        raise UserError(f"it is {list(probs)} for {len(sizes)} sources", where, why, "give one share for each source")
    quotas = count_quotas(table.rows, probs)
    for number, (size, quota) in enumerate(zip(sizes, quotas, strict=True)):
        if quota and not size:
            what, why = f"source {number} has no clip beside those that are held out", "a batch has clips from it"
            raise UserError(what, where, why, "give it more clips, or take it out")
    return ClipOrder(table.rows, seed, starts, quotas)


def pad_labels(labels: Sequence[Sequence[int]]) -> Integers:
    """(B, L) with NO_LABEL where a clip has fewer labels than another."""
    found = np.full((len(labels), max(1, *map(len, labels))), NO_LABEL, dtype=np.int64)
    for row, own in zip(found, labels, strict=True):
        row[: len(own)] = own
    return found
