"""The defaults of the `Program` protocol: of every program, and of the programs that read a run.toml.

Opens the run directory of the latter, and finds the run whose weights such a run begins with; reads no checkpoint.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from prime_train.checkpoints import layout, step_folders
from prime_train.checkpoints.cleanup import Keep
from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import MODEL_BYTES
from prime_train.core.rundir import RunDir
from prime_train.core.whole_folder import write_folder
from prime_train.programs.fixed_settings import list_changes
from prime_train.spec import RunSpec, Source
from prime_train.spec.answers import trains
from prime_train.spec.server import Server
from prime_train.supervise.launch.program import Host, Launch, Needs, Observer, Program, ProgramConfig, Role
from prime_train.supervise.launch.run_directory import (
    ChangedValue,
    Opened,
    Resume,
    drop_later_changes,
    finish_opening,
    read_earlier,
    read_run_spec,
    refuse_changes,
    refuse_earlier_end,
    set_newer_aside,
    shrink,
)
from prime_train.supervise.watches.watch import Watch

if TYPE_CHECKING:
    from prime_train.config.parsed_config import Fault, Reading
    from prime_train.facts.facts import NotKnown, RunFolder


@dataclass(frozen=True, slots=True)
class BaseProgram:
    """A program is stopped by SIGTERM and writes no events and no manifest, unless it overrides that."""

    name: str = ""
    stops_by_file: bool = False
    stop_signal: str = "SIGTERM"
    stops_workers: bool = False
    stops_after_save: bool = False
    saves_by_file: bool = False
    is_mute: bool = False
    must_stay: bool = False
    reports: bool = False
    shrinks: bool = False
    keeps_hashes: bool = False
    gpus_by_number: bool = False
    cured: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.name

    def refusals(self, reading: Reading, python: str | None) -> tuple[Fault, ...] | NotKnown:
        return ()

    def knows_checkpoints(self, run: RunSpec, run_dir: RunDir) -> bool:
        return True

    def notes(self, run: RunSpec) -> tuple[str, ...]:
        return ()

    def plan_lines(self, run: RunSpec, resume_step: int) -> Sequence[tuple[str, str]]:
        return ()

    def fixed_changes(self, before: RunSpec, after: RunSpec) -> Iterable[ChangedValue]:
        return ()

    def aside(self, run: RunSpec) -> Literal["rename", "tracker", "none"]:
        return "none"

    def log_folders(self, run: RunSpec) -> tuple[Path, ...]:
        return ()

    def observer(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> Observer | None:
        return None

    def watches(self, run: RunSpec, run_dir: RunDir) -> tuple[Watch, ...]:
        return ()

    def places(self, run: RunSpec, run_dir: RunDir) -> StepPlaces:
        return StepPlaces(run_dir.path, (run_dir.checkpoints,))

    def checkpoints(self, run: RunSpec, run_dir: RunDir) -> list[SavedCheckpoint]:
        places = self.places(run, run_dir)
        return step_folders.checkpoints(places.checkpoints, places.layout)

    def describe_search(self, run: RunSpec, run_dir: RunDir) -> str:
        return f"no checkpoint in {self.places(run, run_dir).checkpoints[0]}"


@dataclass(frozen=True, slots=True)
class RunTomlProgram(BaseProgram, ABC):
    """Base of the programs that read a run.toml. A program has at least a name, `roles` and `plan` of its own.

    By default it runs as many processes on as many GPUs as `parallel.processes` sets.
    """

    def refuse(self, config: ProgramConfig) -> None:
        """Refuse a file that describes no training, because `run.program` may name this program there too."""
        if not trains(config.run) or config.run.prime_rl is not None:
            raise UserError(
                what=f'run.program = "{self.name}", and the file describes no training by it',
                where=config.path,
                why="this program trains a run.toml with run.kind pretrain, sft, rl or audio",
                fix="take run.program out",
            )

    def named(self, config: ProgramConfig, run_name: str | None) -> tuple[RunSpec, RunDir]:
        """The run with the name in its file: --run-name is already written into the text."""
        run = config.run
        return run, RunDir((Path(run.run.dir).expanduser() / run.run.name).resolve())

    def fixed_changes(self, before: RunSpec, after: RunSpec) -> Iterable[ChangedValue]:
        return list_changes(before, after)

    def write_dir(self, run: RunSpec, run_dir: RunDir) -> Path:
        return run_dir.path

    def run_folder(self, run: RunSpec, write_dir: Path) -> RunFolder:
        from prime_train.facts.previous_run import read_run_folder, read_save_times, read_step_times

        own = RunDir(write_dir.absolute())
        found, left = self.checkpoints(run, own), list_leftovers(own)
        steps, saves = read_step_times(own.metrics), read_save_times(own.events)
        return read_run_folder(own.path, found, left, step_times=steps, save_s=saves)

    def open_run(self, text: str | None, run: RunSpec, run_dir: RunDir, resume: Resume = "auto") -> Opened:
        return open_run(text, run, run_dir, self, resume)

    def configured(self, config: ProgramConfig, run_dir: RunDir, *, writes: bool, only_shown: bool = False) -> Program:
        return self

    def roles(self, run: RunSpec) -> tuple[Role, ...]:
        return (Role("trainer", run.parallel.processes),)

    @abstractmethod
    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        """See `Program.plan`."""

    def environment(self, role: str, run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> Needs:
        from prime_train.supervise.launch.environment import gpu_order, python

        return Needs((*python(), gpu_order()))

    def keep(self, run: RunSpec) -> Keep:
        return Keep(run.checkpoint.keep_last, run.checkpoint.keep_every_steps, writing=False)


def list_leftovers(run_dir: RunDir) -> tuple[str, ...]:
    """Names in a run directory that no run of prime-train wrote."""
    names = sorted(item.name for item in run_dir.path.iterdir()) if run_dir.path.is_dir() else []
    if run_dir.events.name in names or run_dir.resolved.name in names:
        return ()
    known = (run_dir.lock.name, run_dir.slurm.name, run_dir.supervisor_log.name)
    return tuple(name for name in names if name not in known)


def open_run(text: str | None, run: RunSpec, run_dir: RunDir, program: Program, resume: Resume = "auto") -> Opened:
    """Create the directory of a run, or continue in it; `text` is the config as written.

    Without one nothing is written or renamed, as for a dry run.

    A run without a checkpoint starts from the beginning, and every setting may change, because the cause of its end
    was often a fault of the config. The caller holds the run's lock. Raises UserError if the run cannot continue with
    this config or from that checkpoint; then nothing has been changed.
    """
    writes = text is not None
    run = absolute(run, run_dir)
    earlier = read_earlier(run_dir, run, writes=writes)
    run = resolve_init_from(run, run_dir, earlier.run)
    before, micro_batch = earlier.run, earlier.state.micro_batch
    notes: list[str] = []
    if micro_batch is not None and run.batch.micro_batch > micro_batch:
        notes.append(f"micro-batch {micro_batch}, not {run.batch.micro_batch}: memory ran out with more")
        run = shrink(run, micro_batch)
        if before is not None:  # the supervisor's own change, which it may not have written before it died
            before = shrink(before, micro_batch)
    found, places = program.checkpoints(run, run_dir), program.places(run, run_dir)
    if before is not None and found:
        refuse_changes(list(list_changes(before, run)), run_dir)
        if before.batch.micro_batch != run.batch.micro_batch:
            notes.append(
                f"batch.micro_batch is {run.batch.micro_batch} and was {before.batch.micro_batch}: each step has the "
                "same text, but its sums are rounded in another order, so this resume is not bit-equal"
            )
    refuse_earlier_end(run, earlier, resume, found, run_dir)
    hashes = program.keeps_hashes
    aside = set_newer_aside(resume, found, places, run_dir, _name_aside, hashes=hashes, writes=writes)
    notes += drop_later_changes(resume, earlier, run_dir, writes=writes)
    last, old_last = run.run.max_steps, (earlier.run or run).run.max_steps
    otherwise = f"continues to step {last}; it began for {old_last}" if last != old_last else ""
    opened = finish_opening(text, run, run_dir, earlier, (*notes, *aside), rewound=bool(aside), otherwise=otherwise)
    if writes and not found:
        take_tokenizer(run, run_dir)
    return opened


def _name_aside(name: str, number: int) -> str:
    return f"{name}.set_aside" if number == 1 else f"{name}.set_aside.{number}"


def absolute(run: RunSpec, run_dir: RunDir) -> RunSpec:
    """The run with every local path absolute. A name on the Hugging Face hub stays one."""
    return replace(
        run,
        run=replace(run.run, dir=str(run_dir.path.parent)),
        model=replace(run.model, path=_resolve(run.model.path)),
        tokenizer=replace(run.tokenizer, path=_resolve(run.tokenizer.path)),
        data=replace(run.data, sources=_resolve_sources(run.data.sources)),
        eval=replace(
            run.eval,
            sets=tuple(replace(one, sources=_resolve_sources(one.sources)) for one in run.eval.sets),
            benchmarks=tuple(replace(one, path=_resolve(one.path)) for one in run.eval.benchmarks),
        ),
        tasks=tuple(replace(task, id=_resolve(task.id), python=_resolve(task.python)) for task in run.tasks),
        server=None if run.server is None else _resolve_server(run.server),
    )


def _resolve_server(server: Server) -> Server:
    """Requests still use the name of the model in the config, independent of its folder."""
    if not server.model:  # it serves the weights of the run
        return replace(server, python=_resolve(server.python))
    name = server.served_name or server.model
    return replace(server, model=_resolve(server.model) or "", python=_resolve(server.python), served_name=name)


def _resolve_sources(sources: tuple[Source, ...]) -> tuple[Source, ...]:
    return tuple(replace(source, path=_resolve_source(source)) for source in sources)


def _resolve_source(source: Source) -> str | None:
    """Files are always local, and their path may be a glob, which is no existing file."""
    if source.kind in ("files", "tokens") and source.path is not None:
        return os.path.abspath(Path(source.path).expanduser())  # noqa: PTH100 - resolve() would follow links
    return _resolve(source.path)


def _resolve(path: str | None) -> str | None:
    if path is None:
        return None
    there = Path(path).expanduser()
    return os.path.abspath(there) if there.exists() else path  # noqa: PTH100 - resolve() would follow links


def resolve_init_from(run: RunSpec, run_dir: RunDir, earlier: RunSpec | None) -> RunSpec:
    """The run with the directory of `model.init_from`, and with the tokenizer of that run unless the config names one.

    `earlier`: the run as its directory records it. A run that has begun keeps its answers, because the other run may
    be gone by then. Raises UserError.
    """
    name = run.model.init_from
    if name is None:
        return run
    places = [run_dir.path.parent / name, Path(name).expanduser().absolute()]
    if earlier is not None and earlier.model.init_from in {str(place.resolve()) for place in places}:
        return _begin_with(run, str(earlier.model.init_from), earlier.model.init_step, earlier.tokenizer.path)
    found = next((place.resolve() for place in places if RunDir(place).resolved.is_file()), None)
    if found is None:
        raise UserError(
            what=f"there is no run {name!r}",
            where="model.init_from",
            why=f"neither {places[0]} nor {places[1]} is the directory of a run",
            fix="name a run that `prime-train status` lists, or the directory of one",
        )
    if found == run_dir.path:
        raise UserError(
            what="a run cannot begin with its own weights",
            where="model.init_from",
            why="the same name resumes a run from its newest checkpoint",
            fix="give the run another name, or take model.init_from out",
        )
    source = read_run_spec(RunDir(found))
    named = source.tokenizer.path if source is not None else None
    kept = str(run_dir.tokenizer) if RunDir(found).tokenizer.is_dir() else None
    return _begin_with(run, str(found), _choose_step(RunDir(found), run.model.init_step), named or kept)


def _choose_step(source: RunDir, step: int | None) -> int:
    """The step of the checkpoint to begin with. It is chosen once, because the other run may go on."""
    chosen = layout.newest_complete(source.checkpoints) if step is None else layout.inspect(source.checkpoint(step))
    if chosen is None or not chosen.complete:
        which = "no complete checkpoint" if chosen is None else f"no complete checkpoint of step {step}"
        raise UserError(
            what=f"the run {source.path.name} has {which}",
            where="model.init_from" if step is None else "model.init_step",
            why="the weights to begin with are read from one" + (f": {chosen.problem}" if chosen else ""),
            fix=f"prime-train ckpt list {source.path.name} shows what there is",
        )
    return chosen.step


def _begin_with(run: RunSpec, init_from: str, step: int | None, tokenizer: str | None) -> RunSpec:
    model = replace(run.model, init_from=init_from, init_step=run.model.init_step or step)
    return replace(run, model=model, tokenizer=replace(run.tokenizer, path=run.tokenizer.path or tokenizer))


def take_tokenizer(run: RunSpec, run_dir: RunDir) -> None:
    """Copy the trained tokenizer of the other run, so that this one does not need its directory later."""
    if run.model.init_from is None or run.tokenizer.path != str(run_dir.tokenizer):
        return
    source = RunDir(Path(run.model.init_from)).tokenizer
    with write_folder(run_dir.tokenizer, replaces=True) as beside:
        for file in sorted(source.iterdir()):
            (beside / file.name).write_bytes(outside.read_bytes(file, MODEL_BYTES, source))
