"""What is known of the machine, as one frozen value. Each fact may be NotKnown, none is guessed. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from prime_train.architecture import Architecture


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

    `refusal` is what the system says to a file written there, "" where one can be. `held_bytes` is what
    checkpoints of this run already take.
    """

    path: Path
    existing: Path
    free_bytes: int
    held_bytes: int
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
    """The folder of model.path. `problem` is "" where it has a config.json that can be read."""

    path: Path
    problem: str
    model_type: str = ""
    has_weights: bool = False
    architecture: Architecture | None = None  # None where config.json lacks a number


@dataclass(frozen=True, slots=True)
class TokenizerFolder:
    """The folder of tokenizer.path. `problem` is "" where it holds a tokenizer."""

    path: Path
    problem: str
    vocab_size: int | None = None  # largest token + 1; None where only transformers could say


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
    model_folder: ModelFolder | NotKnown | None = NOT_ASKED  # None: the config names none
    tokenizer_folder: TokenizerFolder | NotKnown | None = NOT_ASKED  # None: the config names none
    source_files: tuple[SourceFiles, ...] | NotKnown = NOT_ASKED
    packages: Packages | NotKnown = NOT_ASKED


def to_json(facts: Facts) -> dict[str, Any]:
    """The facts as facts.json and `validate --json` have them; one that is not known says why."""
    document: dict[str, Any] = _json(facts)
    return document


def _json(value: Any) -> Any:
    match value:
        case NotKnown(reason=reason):
            return {"not_known": reason}
        case Architecture():
            return value._asdict() | {"parameters": value.parameters}
        case Path():
            return str(value)
        case tuple():
            return [_json(item) for item in value]
        case _ if is_dataclass(value):
            return {item.name: _json(getattr(value, item.name)) for item in fields(value)}
        case _:
            return value
