"""The RunSpec, and its text in resolved.json, also of an earlier version. `answers` has the questions about it."""

# ruff: noqa: RUF009, F403, F405 - the tables are frozen; a module has all tables of a subject

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from prime_train.core.outside import parse_json
from prime_train.spec.annotations import Doc, Elsewhere, Key
from prime_train.spec.audio import Audio
from prime_train.spec.command import CommandSpec
from prime_train.spec.data import *
from prime_train.spec.model import *
from prime_train.spec.prime_rl_parts import PrimeRl, Recipe
from prime_train.spec.rl import Rl, TaskSource
from prime_train.spec.run import *
from prime_train.spec.server import Inference, Server
from prime_train.spec.supervision import *

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_PARTS_OF_PRIME_RL = ("launch", "trainer", "rollout")


# The settings in a Python script that starts jax.distributed. Only literal values are known: None means computed or not
# set. They are named tuples, because each lint creates them at its start, and a dataclass takes seven times longer.


class JaxStart(NamedTuple):
    """One call of jax.distributed.initialize. Source: JAX 0.10.2, jax/_src/distributed.py."""

    coordinator_address: str | None = None  # "host:port" of process 0
    num_processes: int | None = None
    process_id: int | None = None
    local_device_ids: tuple[int, ...] | None = None
    cluster_detection_method: str | None = None  # "slurm", "ompi", "mpi4py", "deactivate", ...
    initialization_timeout_s: int | None = None
    heartbeat_timeout_s: int | None = None
    given: tuple[str, ...] = ()  # the fields above that the call passes, including computed ones
    passes_more: bool | None = None  # by *arguments or **arguments, which cannot be read
    numbered_by: str | None = None  # the variable from which a computed process_id is read


class Jax(NamedTuple):
    """The JAX settings of a script. A value None in a mapping is computed."""

    starts: tuple[JaxStart, ...] = ()
    config: Mapping[str, object] | None = None  # jax.config.update(name, value)
    environment: Mapping[str, str | None] | None = None  # os.environ[name] = value
    environment_is_known: bool | None = None  # False if a variable's name is computed
    set_after_import: tuple[str, ...] = ()  # variables that are set after `import jax`
    answers_preemption: bool | None = None  # it checks for the notice, or handles SIGTERM itself

    @property
    def variables(self) -> Mapping[str, str | None]:
        return self.environment or {}


Format = Literal["run.toml", "prime-rl", "recipe", "script"]

ENDLESS_STEPS = 2**53  # run.max_steps where a format allows a run without an end and the file sets none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything that the user requested."""

    run: Run
    model: Model = Model()
    audio: Annotated[Audio | None, Doc("Clips, encoder and objective of a run with run.kind = audio.")] = None
    data: Data
    tokenizer: Tokenizer = Tokenizer()
    batch: Batch = Batch()
    optim: Optim = Optim()
    schedule: Schedule = Schedule()
    parallel: Parallel = Parallel()
    checkpoint: Checkpoint = Checkpoint()
    eval: Eval = Eval()
    precision: Precision = Precision()
    profile: Profile = Profile()
    rl: Annotated[Rl | None, Doc("Rollouts and policy update of a run with run.kind = rl.")] = None
    tasks: Annotated[
        tuple[TaskSource, ...],
        Doc("Environments: of the rollouts if run.kind is rl, and of the evaluation of any run."),
    ] = ()
    server: Annotated[
        Server | None,
        Key("inference"),
        Doc("The engine that answers [[tasks]], or a vLLM server beside a training or alone."),
    ] = None
    prime_train: PrimeTrain = PrimeTrain()
    inference: Annotated[Inference | None, Elsewhere()] = None  # the server of either format, for rules and estimates
    command: Annotated[CommandSpec | None, Elsewhere()] = None  # only of run.kind = "command"
    prime_rl: Annotated[PrimeRl | None, Elsewhere()] = None
    recipe: Annotated[Recipe | None, Elsewhere()] = None
    jax: Annotated[Jax | None, Elsewhere()] = None
    format: Annotated[Format, Elsewhere()] = "run.toml"  # set by the reader; a recipe and a script are never started


def to_json(run: RunSpec) -> str:
    """The text of resolved.json: every field, including defaults."""
    return json.dumps(asdict(run), indent=1, default=str)  # str: dates, which an environment of prime-rl may have


def from_json(text: str) -> RunSpec:
    """The RunSpec of a resolved.json. Raises pydantic.ValidationError if the text is invalid."""
    return _adapter().validate_json(_upgrade(text), strict=True)


def _upgrade(text: str) -> str:
    """The text in the shape of a RunSpec, also where its format is not set and its parts of prime-rl stand apart."""
    # As `to_json` writes it: a line break is in no string, so this is a key, and one space is before no inner one.
    if '\n "format": ' in text:
        return text
    try:
        document = parse_json(text)
    except ValueError:
        return text  # which from_json refuses
    if not isinstance(document, dict) or "format" in document:
        return text
    found = _find_format(document)
    parts = {name: document[name] for name in PrimeRl.__dataclass_fields__ if document.get(name) is not None}
    return json.dumps(document | {"format": found, "prime_rl": parts if found == "prime-rl" else None})


def _find_format(document: dict[str, Any]) -> str:
    """The format that such a RunSpec was read from: only its parts show it."""
    if document.get("recipe") is not None:
        return "recipe"
    if document.get("jax") is not None:
        return "script"
    served = document.get("inference") is not None and document.get("server") is None
    return "prime-rl" if served or any(document.get(part) is not None for part in _PARTS_OF_PRIME_RL) else "run.toml"


@cache  # because it takes a tenth of a second, and `status` reads many runs
def _adapter() -> TypeAdapter[RunSpec]:
    from pydantic import TypeAdapter

    return TypeAdapter(RunSpec)
