"""Facts about what lies on this machine's disk for a run: its directory, its data, its models. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StepFolder:
    """One folder of a checkpoint. `problem` is "" where it is complete, else says what is wrong with it."""

    step: int
    path: Path
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """What stands where the run will write. `checkpoints` are newest first, the incomplete ones among them.

    `holder` is the live process that holds the directory, "" where there is none. `leftovers` are names in it that
    are not this run's: prime-rl takes them for an earlier run's, and of a run.toml no run of ours wrote them.
    `target` is the folder that resume.dir names, None where it names none. `step_s` is the median time of a step
    that was taken there, None where none was.
    """

    path: Path
    holder: str = ""
    leftovers: tuple[str, ...] = ()
    checkpoints: tuple[StepFolder, ...] = ()
    target: StepFolder | None = None
    step_s: float | None = None
    timed_steps: int = 0


@dataclass(frozen=True, slots=True)
class DataLengths:
    """What was read of one local data set. `field` is the RunSpec field that names it.

    `rows` is None where counting them all would have taken too long. Tokens are those of the first `measured_rows`,
    by the run's own tokenizer; None where it is not on this machine, or where nothing reads as text.
    `problem` is "" where the data could be read.
    """

    field: str
    path: str
    rows: int | None = None
    measured_rows: int = 0
    longest_tokens: int | None = None
    mean_tokens: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ModelContext:
    """What a model's own config.json says of its positions. `is_scaled` where rope scaling stretches them.

    `scaled_tokens` is the context that vLLM then allows, None where nothing is scaled or that is not known.
    """

    name: str
    tokens: int
    is_scaled: bool
    config: Path
    scaled_tokens: int | None = None
