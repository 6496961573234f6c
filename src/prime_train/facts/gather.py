"""Gathers the requested facts with one probe each, all in parallel. A failed probe returns a reason, not a guess."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_train.facts import accounts, data_lengths, files, host, interpreter, requirements, trials
from prime_train.facts.facts import EngineStart, Facts, NotKnown, RunFolder
from prime_train.facts.find_files import FileSearch
from prime_train.facts.interpreter import find_packages, find_part_packages
from prime_train.facts.machine import VisibleGpus
from prime_train.facts.transform_trials import try_transforms
from prime_train.registry import gpus as gpu_registry
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

START_DEADLINE_S = 180.0  # of vLLM and tasksets before a run; vLLM needs 20 to 90 s with dummy weights, on an H200


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """The limits of the probes.

    `offline` opens no socket; `deep` allows probes of seconds to minutes: a CUDA context, vLLM, tasksets, functions
    for documents, a disk speed test. `starts` allows those of them that start what the run will start, each for at
    most START_DEADLINE_S: tasksets, such functions, and, if this machine has a GPU, a CUDA context and vLLM. `python`
    replaces the interpreter in the config. `other_gpus` are the GPUs of another machine that the run is meant for; then
    all other facts about the machine are NotKnown.
    """

    offline: bool = False
    deep: bool = False
    python: str | None = None
    other_gpus: VisibleGpus | None = None
    starts: bool = False


LookAt = Callable[[RunSpec, Path], RunFolder]  # of the program that trains: only it knows its checkpoints


@dataclass(frozen=True, slots=True)
class ProbeInput:
    """The input of a probe."""

    run: RunSpec
    run_dir: Path
    options: ProbeOptions
    look: LookAt | None = None

    @property
    def python(self) -> str:
        return self.options.python or requirements.python(self.run)

    @property
    def is_named(self) -> bool:
        """Whether the config or the command line names the interpreter of the run."""
        return bool(self.options.python or prime_rl_of(self.run).launch.python)


Probe = Callable[[ProbeInput], Any]
_NOT_DEEP = NotKnown("only --deep probes it")

# Import names of flash attention 2, 3 and 4 and vLLM.
_FEATURE_MODULES = ("flash_attn", "flash_attn_interface", "flash_attn.cute", "vllm")


def _interpreter(question: ProbeInput) -> Any:
    environments = requirements.environment_modules(question.run)
    clashing = {name for clash in gpu_registry.clashes() for name in clash.packages}
    required = requirements.required_package(question.run)
    found = interpreter.interpreter(
        question.python,
        {*requirements.STACK, *clashing, *filter(None, (required,))},
        [*environments, *_FEATURE_MODULES],
        environments if question.options.deep else (),
    )
    if isinstance(found, NotKnown) or question.is_named:
        return found
    if required and required not in dict(found.versions):
        return NotKnown(f"this Python has no {required}: name the run's with --python PATH or [prime_train] python")
    return found


def _tasksets(question: ProbeInput) -> Any:
    """Trials of the tasksets of verifiers. They need no GPU, so every `run` makes them before its first attempt."""
    if not any(source.kind == "verifiers" for source in question.run.tasks):
        return ()
    if not (question.options.deep or question.options.starts):
        return _NOT_DEEP
    return trials.try_tasksets(question.run, START_DEADLINE_S)


def _transforms(question: ProbeInput) -> Any:
    """Trials of the transformations, which are code of the user as well."""
    if question.run.data.allowed_transforms and not (question.options.deep or question.options.starts):
        return _NOT_DEEP
    return try_transforms(question.run, START_DEADLINE_S)


def _may_start(question: ProbeInput) -> bool:
    if question.options.deep or not question.options.starts:
        return question.options.deep
    found = host.gpus()
    return isinstance(found, VisibleGpus) and bool(found.devices)


def _engine(question: ProbeInput) -> Any:
    arguments = requirements.engine_arguments(question.run)
    if arguments is None:
        return None
    if not _may_start(question):
        return _NOT_DEEP
    found = interpreter.interpreter(question.python, (), ("vllm",))
    if isinstance(found, NotKnown):
        return found
    if found.faults and question.options.deep:  # the user wants to see it start
        return EngineStart("environment", f"{question.python} has no vLLM", 0.0)
    if found.faults:
        return NotKnown(f"{question.python} has no vLLM")
    if question.options.deep:
        return trials.start(question.python, arguments)
    started = trials.start(question.python, arguments, START_DEADLINE_S)
    if isinstance(started, EngineStart) and started.failure == "timeout":  # slow is no fault: the run has its own limit
        return NotKnown(f"vLLM did not start within {START_DEADLINE_S:g} s")
    return started


def _source_files(question: ProbeInput) -> Any:
    search = FileSearch()
    found = (
        *files.source_files(question.run.data.sources, search),
        *files.evaluation_files(question.run.eval, search),
        *files.named_data(data_lengths.named_paths(question.run), search),
    )
    return files.settle_unknown(found)


_NO_PROGRAM = NotKnown("which program trains the run is not known")

PROBES: dict[str, Probe] = {
    "open_files": lambda _: host.open_files(),
    "cpu": lambda _: host.cpu(),
    "ram": lambda _: host.ram(),
    "save_dir": lambda question: host.save_dir(question.run_dir),
    "gpus": lambda _: host.gpus(),
    "model_folder": lambda question: files.model_folder(question.run.model.path),
    "tokenizer_folder": lambda question: files.tokenizer_folder(question.run.tokenizer.path),
    "source_files": _source_files,
    "packages": lambda _: find_packages(),
    "shm": lambda _: host.shm(),
    "clock": lambda _: host.clock(),
    "machines": lambda _: host.find_machine_link(),
    "disk_speed": lambda question: host.measure_speed(question.run_dir) if question.options.deep else _NOT_DEEP,
    "interpreter": _interpreter,
    "part_packages": lambda question: find_part_packages(requirements.parts(question.run)),
    "tasksets": _tasksets,
    "transforms": _transforms,
    "busy_ports": lambda question: trials.find_busy_ports(
        (service.port for service in requirements.services(question.run)), offline=question.options.offline
    ),
    "hub": lambda question: accounts.check_repositories(
        requirements.repositories(question.run), offline=question.options.offline
    ),
    "wandb": lambda question: accounts.find_wandb_login() if requirements.reports_to_wandb(question.run) else None,
    "cuda_context": lambda question: trials.create_cuda_context(question.python) if _may_start(question) else _NOT_DEEP,
    "engine": _engine,
    "run_folder": lambda question: question.look(question.run, question.run_dir) if question.look else _NO_PROGRAM,
    "data_lengths": lambda question: data_lengths.lengths(question.run, question.python),
    "chat_trials": lambda question: data_lengths.try_chats(question.run, question.python),
    "model_contexts": lambda question: data_lengths.read_contexts(requirements.models(question.run)),
}
_ANYWHERE = frozenset(
    ("model_folder", "tokenizer_folder", "source_files", "hub", "gpus", "data_lengths", "chat_trials", "model_contexts")
)


def gather(
    run: RunSpec,
    run_dir: Path,
    needs: Iterable[str],
    options: ProbeOptions = ProbeOptions(),
    look: LookAt | None = None,
) -> Facts:
    """The facts named in `needs`. `run_dir` is the future directory of the run, which may not exist yet.

    `look`: `Program.run_folder` of the program that trains the run.
    """
    question = ProbeInput(run, run_dir, options, look)
    wanted = tuple(needs)
    with ThreadPoolExecutor(max_workers=max(1, len(wanted))) as pool:
        return Facts(**dict(zip(wanted, pool.map(lambda need: _probe(need, question), wanted), strict=True)))


def _probe(need: str, question: ProbeInput) -> Any:
    other = question.options.other_gpus
    if other is not None and need == "gpus":
        return other
    if need not in _ANYWHERE or need == "gpus":
        if other is not None:
            return NotKnown("--gpus is for another machine")
        if requirements.on_other_machines(question.run):
            return NotKnown("the run starts on SLURM nodes, not on this machine")
    try:
        return PROBES[need](question)
    except OSError as error:
        return NotKnown(f"{need} could not be read: {error.strerror or error}")
