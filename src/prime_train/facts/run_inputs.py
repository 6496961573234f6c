"""Facts about a run's directory, data and models on the local disk. Values only."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class StepFolder(NamedTuple):
    """One checkpoint folder. `problem` is "" if it is complete, else the reason."""

    step: int
    path: Path
    problem: str = ""


class RunFolder(NamedTuple):
    """The content of the run directory before the run. `checkpoints` are newest first and include incomplete ones.

    `holder` is the live process that uses the directory, or "". `leftovers` are names in the directory that do not
    belong to this run. `target` is the folder in resume.dir, or None. `step_s` is the median time of the
    `timed_steps` in the directory, None if there are none.
    """

    path: Path
    holder: str = ""
    leftovers: tuple[str, ...] = ()
    checkpoints: tuple[StepFolder, ...] = ()
    target: StepFolder | None = None
    step_s: float | None = None
    timed_steps: int = 0


class DataLengths(NamedTuple):
    """The lengths of one local dataset. `field` is its RunSpec field.

    `rows` is None if counting took too long. Tokens are counted in the first `measured_rows` with the run's tokenizer;
    they are None if there is no local tokenizer or no text. `problem` is "" if the data could be read.
    """

    field: str
    path: str
    rows: int | None = None
    measured_rows: int = 0
    longest_tokens: int | None = None
    mean_tokens: float | None = None
    problem: str = ""


class ModelContext(NamedTuple):
    """The positions in a model's config.json. `is_scaled`: whether rope scaling extends them.

    `scaled_tokens` is the context that vLLM then allows, None without scaling or if it is not known.
    """

    name: str
    tokens: int
    is_scaled: bool
    config: Path
    scaled_tokens: int | None = None
