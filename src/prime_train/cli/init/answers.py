"""Turns the flags of `init` into wishes, and looks at what they name: model, GPUs, environment, disk."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from datetime import date
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from prime_train.choose.choose import choose
from prime_train.choose.prime_rl import SHARES_A_GPU
from prime_train.choose.wishes import BUNDLED, NO_LIMIT, TASKS, Budget, ChosenData, GpuPlace, Task, Wishes
from prime_train.choose.workload import EXECUTORS, TURNS, Workload, environment_names, find_workload
from prime_train.cli.estimate import inputs
from prime_train.cli.estimate.inputs import EstimateOptions
from prime_train.cli.init.records import count_tokens, look_at_data
from prime_train.config.prime_rl.schema import generations, newest
from prime_train.core.errors import ExitCode, UserError
from prime_train.estimate.cost.offers import Judgement, OfferLimits, rank
from prime_train.estimate.cost.run_cost import shipped_rates
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.model import shape as shapes
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.relayout import Impossible, work_of_run
from prime_train.estimate.values import Hardware
from prime_train.facts.earlier_saves import find_earlier_saves
from prime_train.facts.installed_prime_rl import table
from prime_train.models.read.find_config import find_config
from prime_train.prices import store
from prime_train.programs.prime_rl.launcher import find_launcher
from prime_train.registry.gpus import gpu_id
from prime_train.registry.known import shape_rows
from prime_train.registry.models import tested_model
from prime_train.spec.hf_config import MODEL_TYPES
from prime_train.toml.did_you_mean import nearest
from prime_train.views.run.runs import RUNS

Word = TypeVar("Word", bound=str)
CHEAPEST = "cheapest"
_GPUS = re.compile(r"(?:(\d{1,4})x)?(?:(\d{1,4})x)?([A-Za-z].*)")
_MOST_CHEAP_GPUS = 8  # of an offer that is tried for --gpus cheapest


class Flags(NamedTuple):
    """The options of the command line; None or "" for one that is not given."""

    task: str | None = None
    model: str | None = None
    gpus: str | None = None
    env: str | None = None
    turns: str | None = None
    tools: str | None = None
    data: str | None = None
    subset: str = ""
    trainer: str = "auto"
    lora: bool | None = None
    ctx_tokens: int | None = None
    steps: int | None = None
    budget_usd: float | None = None
    budget_hours: float | None = None
    interruptions_per_day: float | None = None
    spot: bool = False
    name: str | None = None
    offline: bool = False

    def missing(self) -> list[str]:
        """The flags without which nothing can be chosen."""
        lacking = [f"--{name}" for name in ("task", "model", "gpus") if getattr(self, name) is None]
        if self.task == "rl" and self.env is None:
            lacking.append("--env")
        if self.task in ("pretrain", "sft") and self.data is None and not (self.task == "sft" and self.env):
            lacking.append("--data")
        return lacking


class ReadAnswers(NamedTuple):
    """The wishes, and lines about what was found on the way."""

    wishes: Wishes
    notes: tuple[str, ...]


def read_flags(flags: Flags) -> ReadAnswers:
    """The wishes that the flags stand for. Raises UserError for what does not exist, or cannot be trained."""
    task = check_task(flags.task or "")
    assert flags.model is not None
    shape = find_shape(flags.model, offline=flags.offline)
    workload = read_environment(flags) if flags.env is not None else None
    trainers, notes = choose_trainers(flags, task, flags.gpus or "")
    refuse_model(flags.model, trainers)
    data, seen = _read_data(flags, task)
    wishes = Wishes(
        task=task,
        name=flags.name or _name(flags.model, task),
        model=flags.model,
        shape=shape,
        place=GpuPlace(hardware_from_name("h100-80gb")),
        trainers=trainers,
        data=data,
        workload=workload,
        adapter=flags.lora,
        ctx_tokens=flags.ctx_tokens,
        steps=flags.steps,
        budget=Budget(flags.budget_usd, flags.budget_hours),
    )
    wishes = count_tokens(wishes)
    place, found = find_place(flags, wishes)
    return ReadAnswers(dataclasses.replace(wishes, place=place), (*notes, *seen, *found))


def check_task(task: str) -> Task:
    """The task. Raises UserError for another word, and for one that the trainer does not know yet."""
    if task in TASKS:
        return task
    meant = nearest(task, TASKS)
    why = "what is trained decides the format of data, the batch and the loss"
    if task == "audio":
        why = "the bundled trainer trains on text alone; a trainer of yours can be supervised as a command"
    raise UserError(
        what="audio is not trained yet" if task == "audio" else f"{task!r} is no task",
        where=f"--task {task}",
        why=why,
        fix=f"did you mean {meant}?" if meant else f"one of {', '.join(TASKS)}; or --command 'python train.py'",
    )


def find_shape(model: str, *, offline: bool) -> ModelShape:
    """The shape of a folder, of a model of the registry, or of one on the hub. Raises UserError."""
    known = None if Path(model).is_dir() else shapes.shape_from_registry(model)
    if known is not None:
        return known
    found = find_config(model, f"--model {model}", shape_rows(), offline=offline)
    try:
        return shapes.shape_from_config(found.config, found.name, loaded=found.loaded)
    except shapes.ShapeError as error:
        raise UserError(
            what=error.what,
            where=f"--model {model}",
            why="sizes are chosen by the memory and the speed of the model",
            fix="prime-train models list names models that are known",
            exit_code=ExitCode.FINDINGS,
        ) from None


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


def choose_trainers(flags: Flags, task: Task, gpus: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The trainers to try, in their order, and notes. Raises UserError for a word that names none."""
    known = ("auto", BUNDLED, "prime-rl", *generations())
    if flags.trainer not in known:
        raise UserError(
            what=f"{flags.trainer!r} names no trainer",
            where=f"--trainer {flags.trainer}",
            why=f"the trainers are {', '.join(known)}",
            fix="--trainer bundled; a trainer of yours: --command 'torchrun train.py'",
        )
    if task != "rl":
        if flags.trainer not in ("auto", BUNDLED):
            raise UserError(
                what=f"no file of prime-rl is drafted for {task}",
                where=f"--trainer {flags.trainer}",
                why="init writes files for its `rl` alone",
                fix="--trainer bundled, or prime-train presets list",
            )
        return (BUNDLED,), ()
    if flags.trainer == BUNDLED:
        return (BUNDLED,), ()
    if flags.trainer in generations():
        return (flags.trainer,), ()
    found = find_prime_rl()
    is_single = gpus.partition("x")[0] == "1" or not gpus[:1].isdigit()
    theirs = SHARES_A_GPU if is_single else found.generation or newest()
    return ((theirs,) if flags.trainer == "prime-rl" else (BUNDLED, theirs)), (found.note,)


class FoundPrimeRl(NamedTuple):
    """The generation of the prime-rl of this environment, "" for none, and a line about it."""

    generation: str
    note: str


@cache
def find_prime_rl() -> FoundPrimeRl:
    """Looks for prime-rl once: to ask it for its keys takes seconds."""
    try:
        python = find_launcher("rl", None, os.environ, Path.cwd(), "init").with_name("python")
        found = str(table(str(python), "installed", date.today())["inherits"])
    except UserError:
        return FoundPrimeRl("", "prime-rl: not found in this environment")
    return FoundPrimeRl(found, f"prime-rl: {python} has one of generation {found}")


def _read_data(flags: Flags, task: Task) -> tuple[ChosenData | None, tuple[str, ...]]:
    if task == "rl":
        return None, ()
    if flags.data is None:
        return ChosenData("demonstrations"), ("data: solved tasks of the environment",)
    return look_at_data(flags.data, task, flags.subset)


def _name(model: str, task: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-.").lower()
    return f"{plain or 'model'}-{task}"


def find_place(flags: Flags, wishes: Wishes) -> tuple[GpuPlace, tuple[str, ...]]:
    """The machines of --gpus: named, found here, or the cheapest that fit. Raises UserError for no GPU."""
    per_hour = None if flags.interruptions_per_day is None else flags.interruptions_per_day / 24
    if flags.gpus == CHEAPEST:
        place, note = _find_cheapest(wishes, spot=flags.spot)
        return place._replace(interruptions_per_hour=per_hour), (note,)
    if flags.gpus in (None, "here"):
        free, saves = shutil.disk_usage(Path.cwd()).free, find_earlier_saves(Path(RUNS))
        return GpuPlace(inputs.find_gpus(EstimateOptions("")), 1, free, per_hour, flags.spot, saves), ()
    hardware, machines = parse_place(flags.gpus or "")
    if wishes.task == "rl" and machines > 1:
        raise UserError(
            what=f"{machines} machines",
            where=f"--gpus {flags.gpus}",
            why="a run of rl has its engine on the machine that trains",
            fix=f"--gpus {hardware.gpus // machines}x{hardware.id}",
            exit_code=ExitCode.FINDINGS,
        )
    return GpuPlace(hardware, machines, interruptions_per_hour=per_hour, is_spot=flags.spot), ()


def parse_place(text: str) -> tuple[Hardware, int]:
    """The GPUs of "1xrtx4090", "8xh100-80gb" or "2x8xh100", all of them, and the machines. Raises UserError."""
    found = _GPUS.fullmatch(text.strip())
    if found is None:
        return hardware_from_name(text), 1
    first, second, name = found.groups()
    machines, each = (int(first or 1), int(second)) if second else (1, int(first or 1))
    known = gpu_id(name.replace("-", " ")) or name
    try:
        hardware = hardware_from_name(f"{machines * each}x{name}")
    except UserError:
        hardware = hardware_from_name(f"{machines * each}x{known}")
    return hardware._replace(gpus_per_node=each if machines > 1 else hardware.gpus_per_node), machines


def _find_cheapest(wishes: Wishes, *, spot: bool) -> tuple[GpuPlace, str]:
    """The GPUs of the offer on which the whole run costs least, sized for each offer as for any other machine."""
    prices = store.load(store.today())

    def judge(gpu: str, count: int) -> Judgement | Impossible:
        hardware = hardware_from_name(f"{count}x{gpu}")
        try:
            chosen = choose(dataclasses.replace(wishes, place=GpuPlace(hardware), budget=NO_LIMIT))
        except UserError as error:
            return Impossible(error.what)
        time, run = chosen.estimate.time, chosen.reading.run
        assert time is not None
        assert run is not None
        need = max(role.memory.need.high for role in chosen.estimate.memory.roles) / 2**30
        work = work_of_run(run)
        return Judgement(chosen.estimate.chance, need, hardware.usable_bytes / 2**30, work, time.step_s)

    ranking = rank(prices, cache(judge), OfferLimits(None, spot, gpus_max=_MOST_CHEAP_GPUS), shipped_rates())
    if not ranking.offers:
        raise UserError(
            what="no offer has GPUs on which it fits" if prices else "the price table is empty",
            where="--gpus cheapest",
            why="; ".join(f"{why} ({count})" for why, count in ranking.left_out[:2]) or "there is nothing to rank",
            fix="a smaller model, --lora, or --gpus with GPUs of yours",
            exit_code=ExitCode.FINDINGS,
        )
    best = ranking.offers[0]
    gpus = f"{best.gpus}x{best.price.gpu}"
    cost = f"{best.cost.usd.typical:.3g} USD ({best.cost.usd.low:.3g} to {best.cost.usd.high:.3g})"
    offer = f"{gpus}{' (spot)' if best.price.spot else ''} at {best.price.cloud}"
    place = GpuPlace(hardware_from_name(gpus), is_spot=best.price.spot)
    return place, f"cheapest: {offer}, {cost} for the whole run"
