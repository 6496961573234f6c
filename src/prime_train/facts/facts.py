"""The facts about the machine as one frozen value. An unknown fact is NotKnown, never a guess. No I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.facts import machine
from prime_train.spec.decoder_size import Architecture


@dataclass(frozen=True, slots=True)
class NotKnown:
    """Replaces a fact that could not be read, with the reason."""

    reason: str


NOT_GATHERED = NotKnown("not gathered")


class ModelFolder(NamedTuple):
    """The folder of model.path. `problem` is "" if its config.json can be read."""

    path: Path
    problem: str
    model_type: str = ""
    has_weights: bool = False
    architecture: Architecture | None = None  # None if the bundled trainer cannot train it
    refusal: tuple[str, str] = ("", "")  # the reason for that: what and why


class TokenizerFolder(NamedTuple):
    """The folder of tokenizer.path. `problem` is "" if it has a tokenizer."""

    path: Path
    problem: str
    vocab_size: int | None = None  # largest token + 1; None if only transformers can read it
    has_chat_template: bool | None = None  # None if its files cannot be read


class SourceFiles(NamedTuple):
    """The local files of one data source. `problem` is "" if all can be read, `is_denied`: a permission is missing."""

    source: int  # index in data.sources
    path: str
    files: int
    size_bytes: int
    problem: str
    is_denied: bool = False
    field: str = ""  # the RunSpec field of a path that no data source has
    unknown: str = ""  # why the search for files did not come to its end


class OldPackage(NamedTuple):
    """A package of the `train` extra in a version that prime-train does not take."""

    name: str
    version: str
    needed: str  # ">=2.11"


class Packages(NamedTuple):
    """Packages of the `train` extra that this interpreter does not have, or has in too old a version."""

    missing: tuple[str, ...]
    old: tuple[OldPackage, ...] = ()


class ModuleFault(NamedTuple):
    """A module that the run's interpreter cannot import, and why."""

    module: str
    fault: str


class Interpreter(NamedTuple):
    """The run's Python and its packages.

    `versions` are (distribution, version), `requirements` (distribution, requirement) from the metadata, `torch_cuda`
    is the CUDA version of the torch build: "" without torch, "none" for a CPU build.
    """

    python: str
    version: str
    versions: tuple[tuple[str, str], ...]
    requirements: tuple[tuple[str, str], ...] = ()
    torch_cuda: str = ""
    faults: tuple[ModuleFault, ...] = ()


class PartPackage(NamedTuple):
    """A package that a part of the run needs in an interpreter of its own. `fault` is "" if it can be used."""

    field: str  # RunSpec field of the part: "server.engine", "tasks.0.id"
    package: str  # "vllm", "verifiers", or a taskset
    python: str
    fault: str = ""


class TasksetTrial(NamedTuple):
    """The first task of a taskset, scored with a short answer. `fault` is "" if the taskset could be opened.

    `reward_fault` is "" if the reward is a finite number. `fix` repairs the fault, "" if the place is not known.
    """

    field: str  # RunSpec field: "tasks.0.id"
    fault: str = ""
    fix: str = ""
    reward_fault: str = ""


class TransformTrial(NamedTuple):
    """One of data.allowed_transforms, called with the first documents. `what` to `fix` are "" if it returned texts."""

    field: str  # RunSpec field: "data.allowed_transforms.0"
    where: str = ""
    what: str = ""
    why: str = ""
    fix: str = ""


class HubAnswer(StrEnum):
    """The answer of the Hugging Face hub, or of its local cache, for a repository."""

    OPEN = "open"
    CACHED = "cached"
    NOT_CACHED = "not-cached"  # and HF_HUB_OFFLINE forbids requests
    LOGIN = "login"  # 401: private or missing
    BAD_TOKEN = "bad-token"
    GATED = "gated"  # 403: terms not accepted
    FORBIDDEN = "forbidden"  # 403: the token lacks a permission
    MISSING = "missing"  # 404
    UNREACHABLE = "unreachable"


class HubRepository(NamedTuple):
    """`kind` is model or dataset. `has_tokenizer` is None if only the cache was read."""

    kind: str
    name: str
    answer: HubAnswer
    detail: str
    has_tokenizer: bool | None = None


class Login(NamedTuple):
    """The place of the key for Weights & Biases: WANDB_API_KEY, a file, or "". Never the key itself."""

    found: str
    host: str
    mode: str  # WANDB_MODE
    problem: str = ""


class EngineStart(NamedTuple):
    """A start of vLLM. `failure`: "", port, environment, driver, memory, model, config, timeout or other."""

    failure: str
    line: str
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts for the rules. A rule lists the fields that it needs."""

    open_files: machine.OpenFiles | NotKnown = NOT_GATHERED
    cpu: machine.Cpu | NotKnown = NOT_GATHERED
    ram: machine.Ram | NotKnown = NOT_GATHERED
    save_dir: machine.SaveDir | NotKnown = NOT_GATHERED
    gpus: machine.VisibleGpus | NotKnown = NOT_GATHERED
    model_folder: ModelFolder | NotKnown | None = NOT_GATHERED  # None: not in the config
    tokenizer_folder: TokenizerFolder | NotKnown | None = NOT_GATHERED  # None: not in the config
    source_files: tuple[SourceFiles, ...] | NotKnown = NOT_GATHERED
    packages: Packages | NotKnown = NOT_GATHERED
    shm: machine.Shm | NotKnown = NOT_GATHERED
    clock: machine.MachineClock | NotKnown = NOT_GATHERED
    machines: machine.MachineLink | NotKnown | None = NOT_GATHERED  # None: the environment names no other
    disk_speed: machine.DiskSpeed | NotKnown = NOT_GATHERED
    interpreter: Interpreter | NotKnown = NOT_GATHERED
    part_packages: tuple[PartPackage, ...] | NotKnown = NOT_GATHERED
    tasksets: tuple[TasksetTrial, ...] | NotKnown = NOT_GATHERED
    transforms: tuple[TransformTrial, ...] | NotKnown = NOT_GATHERED
    busy_ports: tuple[machine.BusyPort, ...] | NotKnown = NOT_GATHERED
    hub: tuple[HubRepository, ...] | NotKnown = NOT_GATHERED
    wandb: Login | NotKnown | None = NOT_GATHERED  # None: the run does not use it
    cuda_context: machine.CudaContext | NotKnown = NOT_GATHERED
    engine: EngineStart | NotKnown | None = NOT_GATHERED  # None: the run starts no vLLM
    run_folder: RunFolder | NotKnown = NOT_GATHERED
    data_lengths: tuple[DataLengths, ...] | NotKnown = NOT_GATHERED
    chat_trials: tuple[ChatTrial, ...] | NotKnown = NOT_GATHERED
    model_contexts: tuple[ModelContext, ...] | NotKnown = NOT_GATHERED


def to_json(facts: Facts) -> dict[str, Any]:
    """The document of facts.json and `validate --json`. An unknown fact has its reason."""
    return {item.name: _json(getattr(facts, item.name)) for item in fields(facts)}


def _json(value: Any) -> Any:
    match value:
        case NotKnown(reason=reason):
            return {"not_known": reason}
        case Path():
            return str(value)
        case Architecture():
            return asdict(value) | {"parameters": value.parameters, "active_parameters": value.active_parameters}
        case tuple() if hasattr(value, "_fields"):
            return {name: _json(item) for name, item in zip(value._fields, value, strict=True)}
        case tuple():
            return [_json(item) for item in value]
        case _:
            return value


class StepFolder(NamedTuple):
    """One checkpoint folder. `problem` is "" if it is complete, else the reason."""

    step: int
    path: Path
    problem: str = ""


class RunFolder(NamedTuple):
    """The content of the run directory before the run. `checkpoints` are newest first and include incomplete ones.

    `holder` is the live process that uses the directory, or "". `leftovers` are names in the directory that do not
    belong to this run. `target` is the folder in resume.dir, or None. `step_s` is the median time of the
    `timed_steps` in the directory, None if there are none. `save_s` is the median time of its saves: the training
    stands still, and from the start to the marker.
    """

    path: Path
    holder: str = ""
    leftovers: tuple[str, ...] = ()
    checkpoints: tuple[StepFolder, ...] = ()
    target: StepFolder | None = None
    step_s: float | None = None
    timed_steps: int = 0
    save_s: tuple[float, float] | None = None


class DataLengths(NamedTuple):
    """The lengths of one local dataset. `field` is its RunSpec field.

    `rows` is None if counting took too long. Tokens are counted in the first `measured_rows` with the run's tokenizer;
    they are None if there is no local tokenizer or no text. `problem` is "" if the data could be read. `broken` is the
    fault of the first records of a file, "" if they are rows with a text.
    """

    field: str
    path: str
    rows: int | None = None
    measured_rows: int = 0
    longest_tokens: int | None = None
    mean_tokens: float | None = None
    problem: str = ""
    broken: str = ""


class ChatTrial(NamedTuple):
    """The first chats of local data, as the trainer reads them. `field` is the RunSpec field of the data.

    `chats` were tried and are good. `where` to `fix` are of the first one that the trainer refuses, "" for none.
    `is_whole`: all chats were tried; then `learned_train` and `learned_held_out` of them have a token to learn among
    the first data.ctx_tokens, and `least_ctx_tokens` is the smallest context with which some of either part have one.
    It is None where the assistant has no token in any context.
    """

    field: str
    chats: int = 0
    where: str = ""
    what: str = ""
    why: str = ""
    fix: str = ""
    is_whole: bool = False
    learned_train: int = 0
    learned_held_out: int = 0
    least_ctx_tokens: int | None = None


class ModelContext(NamedTuple):
    """The positions in a model's config.json. `is_scaled`: whether rope scaling extends them.

    `scaled_tokens` is the context that vLLM then allows, None without scaling or if it is not known.
    """

    name: str
    tokens: int
    is_scaled: bool
    config: Path
    scaled_tokens: int | None = None
