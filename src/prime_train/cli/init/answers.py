"""Turns the flags of `init` into wishes, and looks at what they name: model, GPUs, environment, disk."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import NamedTuple, TypeVar

from prime_train.choose.wishes import BUNDLED, TASKS, Budget, ChosenData, GpuPlace, Task, Wishes
from prime_train.choose.workload import EXECUTORS, TURNS, Workload, environment_names, find_workload
from prime_train.cli.estimate.inputs import find_named_shape
from prime_train.cli.init.flags import AUDIO, Flags
from prime_train.cli.init.place import find_cheapest, find_named
from prime_train.cli.init.records import count_tokens, look_at_data
from prime_train.cli.init.trainers import choose_trainers, refuse_data
from prime_train.core.errors import ExitCode, UserError
from prime_train.estimate.hardware import hardware_from_name
from prime_train.registry.known import shape_rows
from prime_train.registry.models import tested_model
from prime_train.spec.hf_config import MODEL_TYPES
from prime_train.toml.did_you_mean import nearest

Word = TypeVar("Word", bound=str)


class ReadAnswers(NamedTuple):
    """The wishes, and lines about what was found on the way."""

    wishes: Wishes
    notes: tuple[str, ...]


def read_flags(flags: Flags) -> ReadAnswers:
    """The wishes that the flags stand for. Raises UserError for what does not exist, or cannot be trained."""
    task = check_task(flags.task or "")
    assert flags.model is not None
    shape = find_named_shape(flags.model, f"--model {flags.model}", offline=flags.offline)
    workload = read_environment(flags) if flags.env is not None else None
    place = find_named(flags)
    trainers, notes = choose_trainers(flags, task, place)
    refuse_model(flags.model, trainers)
    data, seen = _read_data(flags, task)
    if data is not None and trainers != (BUNDLED,):
        refuse_data(data, trainers[0])
    wishes = Wishes(
        task=task,
        name=flags.name or _name(flags.model, task),
        model=flags.model,
        shape=shape,
        place=place or GpuPlace(hardware_from_name("h100-80gb")),
        trainers=trainers,
        data=data,
        workload=workload,
        adapter=flags.lora,
        ctx_tokens=flags.ctx_tokens,
        steps=flags.steps,
        budget=Budget(flags.budget_usd, flags.budget_hours),
    )
    wishes = count_tokens(wishes)
    if place is not None:
        return ReadAnswers(wishes, (*notes, *seen))
    place, found = find_cheapest(wishes, flags)
    return ReadAnswers(dataclasses.replace(wishes, place=place), (*notes, *seen, found))


def check_task(task: str) -> Task:
    """The task of a model of text. Raises UserError for another word."""
    if task in TASKS:
        return task
    words = (*TASKS, AUDIO)
    meant = nearest(task, words)
    raise UserError(
        what=f"{task!r} is no task",
        where=f"--task {task}",
        why="what is trained decides the format of data, the batch and the loss",
        fix=f"did you mean {meant}?" if meant else f"one of {', '.join(words)}; or --trainer command",
    )


def refuse_model(model: str, trainers: tuple[str, ...]) -> None:
    """Raise UserError if the bundled trainer is the only one that may be used, and has not this architecture."""
    tested = tested_model(model)
    if trainers != (BUNDLED,) or Path(model).is_dir() or tested is None or not tested.architecture:
        return  # a folder is judged by MOD001, which reads its config.json
    plain = re.sub(r"(ForCausalLM|LMHeadModel)$", "", tested.architecture).lower()
    if plain in {kind.replace("_", "") for kind in MODEL_TYPES}:
        return
    raise UserError(
        what=f"{tested.architecture} is not trained by the bundled trainer",
        where=f"--model {model}",
        why=f"it trains {', '.join(MODEL_TYPES)}",
        fix="another model, or --command with a trainer that knows this one",
        exit_code=ExitCode.FINDINGS,
    )


def read_environment(flags: Flags) -> Workload:
    """The workload of --env, as the registry or --turns and --tools describe it. Raises UserError for no name."""
    name = (flags.env or "").strip()
    found = find_workload(name)
    if found is None:
        meant = nearest(name, environment_names())
        if not re.fullmatch(r"[A-Za-z0-9][\w./@-]*", name) or (meant is not None and not flags.turns):
            raise UserError(
                what=f"{name!r} is no environment that is known",
                where=f"--env {name}",
                why="built-in ones and those of the registry have names; any other needs --turns",
                fix=f"did you mean {meant}?" if meant else "--env reverse-text, or ID --turns multi --tools local",
            )
        if flags.turns is None:
            raise UserError(
                what=f"how {name} works is not known",
                where=f"--env {name}",
                why="turns and tools decide the length of a rollout, the batch and how many run at once",
                fix=f"--env {name} --turns single, or --turns multi --tools local",
            )
        found = Workload("verifiers", name, is_described=False)
    if flags.turns is not None:
        found = found._replace(turns=_one_of(TURNS, flags.turns, "--turns"), is_described=True)
    if flags.tools is not None:
        executor = _one_of(EXECUTORS, flags.tools, "--tools")
        found = found._replace(tools=executor != "none", executor=executor)
    return found


def _one_of(words: tuple[Word, ...], given: str, where: str) -> Word:
    found = next((word for word in words if word == given), None)
    if found is None:
        raise UserError(f"{given!r} is none of them", where, f"the words are {', '.join(words)}", f"{where} {words[0]}")
    return found


def list_models() -> list[str]:
    """The models of the registry, and those in the local cache of the hub."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache_folder = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    cached = [path.name.removeprefix("models--").replace("--", "/") for path in cache_folder.glob("models--*--*")]
    return list(dict.fromkeys((*cached, *shape_rows())))


def _read_data(flags: Flags, task: Task) -> tuple[ChosenData | None, tuple[str, ...]]:
    if task == "rl":
        return None, ()
    if flags.data is None:
        return ChosenData("demonstrations"), ("data: solved tasks of the environment",)
    return look_at_data(flags.data, task, flags.subset)


def _name(model: str, task: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-.").lower()
    return f"{plain or 'model'}-{task}"
