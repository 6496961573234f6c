"""What is known of the machine, as one frozen value. Each fact may be NotKnown, none is guessed. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NotKnown:
    """Stands in a fact's place and says why it is not there."""

    reason: str


NOT_ASKED = NotKnown("not asked for")


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """RLIMIT_NOFILE of this process, which the trainer inherits. `hard` is None where there is no limit."""

    soft: int
    hard: int | None


@dataclass(frozen=True, slots=True)
class Cpu:
    """`cores` this process may run on; `bf16_instruction` is the instruction set with bf16 dot products or ""."""

    cores: int
    bf16_instruction: str


@dataclass(frozen=True, slots=True)
class Ram:
    """Memory of the machine, or of the control group where that is less."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class SaveDir:
    """Where the run directory will be: `existing` is it or its nearest parent that exists.

    `refusal` is what the system says to a file written there, "" where one can be.
    """

    path: Path
    existing: Path
    free_bytes: int
    refusal: str


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that this process may see, by NVML. `reason` says why there are none."""

    devices: tuple[Gpu, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The folder of model.path. `problem` is "" where it has a readable config.json; `config` is that file."""

    path: Path
    problem: str
    config: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenizerFolder:
    """The folder of tokenizer.path. `problem` is "" where it holds a tokenizer."""

    path: Path
    problem: str


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """What one data source finds on the disk. `problem` is "" where all of it can be read."""

    source: int  # index in data.sources
    path: str
    files: int
    size_bytes: int
    problem: str


@dataclass(frozen=True, slots=True)
class Packages:
    """Packages of the `train` extra that this interpreter cannot find."""

    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything a rule may ask about the world. A rule names the fields it needs."""

    open_files: OpenFiles | NotKnown = NOT_ASKED
    cpu: Cpu | NotKnown = NOT_ASKED
    ram: Ram | NotKnown = NOT_ASKED
    save_dir: SaveDir | NotKnown = NOT_ASKED
    gpus: Gpus | NotKnown = NOT_ASKED
    model_folder: ModelFolder | NotKnown = NOT_ASKED
    tokenizer_folder: TokenizerFolder | NotKnown = NOT_ASKED
    source_files: tuple[SourceFiles, ...] | NotKnown = NOT_ASKED
    packages: Packages | NotKnown = NOT_ASKED


def known(fact: T | NotKnown) -> T:
    """The fact itself. For rules: they are not run where a fact they need is not known."""
    if isinstance(fact, NotKnown):
        raise ValueError(f"a rule reads a fact that it does not name in `needs`: {fact.reason}")
    return fact
