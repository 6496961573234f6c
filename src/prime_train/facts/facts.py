"""What is known of the machine, as one frozen value. Each fact may be NotKnown, none is guessed. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from prime_train.architecture import Architecture
from prime_train.facts.local import DataLengths, ModelContext, RunFolder


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
    checkpoints of this run already take. `file_system` is its type as the kernel names it, "" where it does not.
    """

    path: Path
    existing: Path
    free_bytes: int
    held_bytes: int
    refusal: str
    file_system: str = ""


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Bytes a second that reach the disk under the run directory."""

    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Shm:
    """/dev/shm, through which processes of one machine hand each other tensors."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of this machine. It cannot be before `not_before_unix_s`, when `witness` was written."""

    unix_s: float
    not_before_unix_s: float
    witness: str


@dataclass(frozen=True, slots=True)
class GpuUser:
    """A process that computes on a GPU. `name` is "" where it is not one of this process namespace."""

    pid: int
    used_bytes: int
    name: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `fault` is what the driver says of one that does not answer; nothing else is known of it then."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    used_bytes: int = 0
    users: tuple[GpuUser, ...] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that this process may see, by NVML. `reason` says why there are none."""

    devices: tuple[Gpu, ...]
    reason: str = ""
    driver: str = ""
    driver_cuda: tuple[int, int] | None = None  # the newest CUDA that the driver runs


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


@dataclass(frozen=True, slots=True)
class ModuleFault:
    """A module that the run's interpreter cannot import, and why."""

    module: str
    fault: str


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that the run will use, and what was looked for in it.

    `versions` are (distribution, version) of what is installed, `requirements` (distribution, requirement) as its
    metadata has them, `torch_cuda` the CUDA that torch is built for: "" without torch, "none" where it is for CPUs.
    """

    python: str
    version: str
    versions: tuple[tuple[str, str], ...]
    requirements: tuple[tuple[str, str], ...] = ()
    torch_cuda: str = ""
    faults: tuple[ModuleFault, ...] = ()


@dataclass(frozen=True, slots=True)
class BusyPort:
    port: int
    why: str


class HubAnswer(StrEnum):
    """What the Hugging Face hub, or its cache on this machine, says of a repository."""

    OPEN = "open"
    CACHED = "cached"
    NOT_CACHED = "not-cached"  # and HF_HUB_OFFLINE keeps the run from asking
    LOGIN = "login"  # 401: private, or not there at all
    BAD_TOKEN = "bad-token"
    GATED = "gated"  # 403: its terms are not accepted
    FORBIDDEN = "forbidden"  # 403: the token lacks a right
    MISSING = "missing"  # 404
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class HubRepository:
    """`kind` is model or dataset. `has_tokenizer` is None where the hub was not asked."""

    kind: str
    name: str
    answer: HubAnswer
    detail: str
    has_tokenizer: bool | None = None


@dataclass(frozen=True, slots=True)
class Login:
    """Where a key for Weights & Biases was found: WANDB_API_KEY or a file; "" for nowhere. Never the key."""

    found: str
    host: str
    mode: str  # WANDB_MODE
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CudaContext:
    """GPUs that torch computed on in a child process; `failure` is "" where it did on all."""

    devices: int
    failure: str


@dataclass(frozen=True, slots=True)
class EngineStart:
    """How vLLM started. `failure` is "" or port, environment, driver, memory, model, config, timeout or other."""

    failure: str
    line: str
    took_s: float


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
    shm: Shm | NotKnown = NOT_ASKED
    clock: Clock | NotKnown = NOT_ASKED
    disk_speed: DiskSpeed | NotKnown = NOT_ASKED
    interpreter: Interpreter | NotKnown = NOT_ASKED
    busy_ports: tuple[BusyPort, ...] | NotKnown = NOT_ASKED
    hub: tuple[HubRepository, ...] | NotKnown = NOT_ASKED
    wandb: Login | NotKnown | None = NOT_ASKED  # None: the run does not report there
    cuda_context: CudaContext | NotKnown = NOT_ASKED
    engine: EngineStart | NotKnown | None = NOT_ASKED  # None: the run starts no vLLM
    run_folder: RunFolder | NotKnown = NOT_ASKED
    data_lengths: tuple[DataLengths, ...] | NotKnown = NOT_ASKED
    model_contexts: tuple[ModelContext, ...] | NotKnown = NOT_ASKED


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
