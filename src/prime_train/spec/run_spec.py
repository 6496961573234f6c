"""The RunSpec: its fields, and nothing else. `answers` has the questions about it."""

# ruff: noqa: RUF009, F403, F405 - the tables are frozen; a module has all tables of a subject

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from prime_train.spec import jax as scripts
from prime_train.spec.annotations import Doc, Elsewhere, Key
from prime_train.spec.data import *
from prime_train.spec.model import *
from prime_train.spec.prime_rl_parts import PrimeRl, Recipe
from prime_train.spec.rl import Rl, TaskSource
from prime_train.spec.run import *
from prime_train.spec.server import Inference, Server
from prime_train.spec.supervision import *

Format = Literal["run.toml", "prime-rl", "recipe", "script"]

ENDLESS_STEPS = 2**53  # run.max_steps where a format allows a run without an end and the file sets none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything that the user requested."""

    run: Run
    model: Model = Model()
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
    prime_rl: Annotated[PrimeRl | None, Elsewhere()] = None
    recipe: Annotated[Recipe | None, Elsewhere()] = None
    jax: Annotated[scripts.Jax | None, Elsewhere()] = None
    format: Annotated[Format, Elsewhere()] = "run.toml"  # set by the reader; a recipe and a script are never started
