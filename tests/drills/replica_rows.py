"""The rows that the replicas of a drill used in each step, and those that the stream has for it. Trains nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prime_train import spec
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.data.stream import TrainStream
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from tests.drills.replica_kills import ReplicaRun


@dataclass(frozen=True)
class UsedRows:
    """One step as it was committed last. `rows`: as `describe_rows` writes them, in their order."""

    replicas: int
    rows: list[str]

    @property
    def tokens(self) -> int:
        """The labelled ones."""
        return sum(int(row.split("/")[1]) for row in self.rows)


def list_used(run: ReplicaRun) -> list[UsedRows]:
    """The steps from the first one on. A step that was repeated after its replica was lost is the repeated one."""
    rows: dict[tuple[int, str], dict[int, str]] = defaultdict(dict)
    sizes: dict[tuple[int, str], int] = {}
    commits: dict[int, tuple[float, str]] = {}
    for _, words in run.lines():
        step, quorum = int(words[1]), words[2]
        match words[0]:
            case "begin":
                sizes[step, quorum] = int(words[4])
            case "rows":
                rows[step, quorum] |= dict(enumerate(words[4:], int(words[3])))
            case "commit":
                commits[step] = max(commits.get(step, (0.0, "")), (float(words[3]), quorum))
    keys = [(step, commits[step][1]) for step in range(1, len(commits) + 1)]
    return [UsedRows(sizes[key], [rows[key][place] for place in sorted(rows[key])]) for key in keys]


def read_stream(
    run: spec.RunSpec, sizes: Sequence[int], changes: Mapping[int, spec.RunSpec]
) -> tuple[list[MicroBatch], list[bool]]:
    """Steps of so many rows each, and after which the stream is in transformed documents.

    `changes`: other settings by the step that they begin with.
    """
    stream = TrainStream(run, load_tokenizer(run), 0, 1, None)
    steps, changed = [], []
    for step, size in enumerate(sizes, start=1):
        if step in changes:
            stream.take_settings(changes[step])
        steps.append(stream.take(size).read(range(size)))
        changed.append("transforms" in stream.position())
    stream.close()
    return steps, changed
