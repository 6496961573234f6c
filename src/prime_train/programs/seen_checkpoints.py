"""The events for checkpoints that a program writes without events, by comparing what the disk has. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.events import CheckpointDeleted, CheckpointSaved, CheckpointStarted

_GONE = "it is gone from the disk: newer ones superseded it"

CheckpointEvents = tuple[CheckpointStarted | CheckpointSaved | CheckpointDeleted, ...]


@dataclass(frozen=True, slots=True)
class SeenCheckpoints:
    """The checkpoints at the last look, by their steps in rising order."""

    began: bool = False
    saving: tuple[tuple[int, float], ...] = ()  # steps with an incomplete folder, and since when
    whole: tuple[int, ...] = ()
    newest: str = ""  # the path of the newest complete one
    there: tuple[int, ...] = ()

    @property
    def newest_complete(self) -> int:
        return self.whole[-1] if self.whole else 0


def compare(
    seen: SeenCheckpoints,
    found: Sequence[SavedCheckpoint],
    now_s: float,
    attempt: int,
    reported_s: Mapping[int, float] = MappingProxyType({}),
) -> tuple[SeenCheckpoints, CheckpointEvents]:
    """Events for new complete, new incomplete and deleted checkpoints; none for those that were there at the start.

    `reported_s`: how long a save stopped the training, as the trainer reports it, by step.
    """
    whole = {checkpoint.step: checkpoint for checkpoint in found if checkpoint.complete}
    there = {checkpoint.step for checkpoint in found}
    since = dict(seen.saving)
    events: list[CheckpointStarted | CheckpointSaved | CheckpointDeleted] = []
    for step in sorted(there - whole.keys() - since.keys() - set(seen.there)) if seen.began else ():
        since[step] = now_s
        events.append(CheckpointStarted(attempt, step))
    for step in sorted(whole.keys() - set(seen.whole)) if seen.began else ():
        write_s = now_s - since.pop(step, now_s)
        # Without a report, the save stopped the training for its whole time.
        stall_s = reported_s.get(step, write_s)
        events.append(CheckpointSaved(attempt, step, whole[step].size_bytes, round(stall_s, 3), round(write_s, 3)))
    events.extend(CheckpointDeleted(attempt, step, _GONE) for step in sorted(set(seen.whole) - there))
    left = tuple((step, at_s) for step, at_s in since.items() if step in there)
    newest = str(whole[max(whole)].path) if whole else ""
    return SeenCheckpoints(True, left, tuple(sorted(whole)), newest, tuple(sorted(there))), tuple(events)
