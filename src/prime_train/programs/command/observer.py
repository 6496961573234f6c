"""Writes the trainer's kinds of events for a command, which writes none: reads output, files and checkpoints.

Its thread starts, signals and deletes nothing. judge.py decides what the end means.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from prime_train.checkpoints import step_folders
from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.checkpoints.step_folders import SeenPaths
from prime_train.core.plans import read_plan
from prime_train.core.rundir import RunDir, append_line
from prime_train.events import CheckpointUnreadable, Phase, Progress, SaveListened, SettingsApplied, StopListened
from prime_train.live_report import SAVE, STOP
from prime_train.programs.command.files import GrowingFile
from prime_train.programs.command.folder_lock import hold_folder
from prime_train.programs.command.judge import EndRules, SeenEnd, judge_end
from prime_train.programs.command.live_lines import LiveLine, LiveLines
from prime_train.programs.command.progress.end_line import EndLine
from prime_train.programs.command.progress.log_progress import LogProgress
from prime_train.programs.command.progress.marks import ProgressMark
from prime_train.programs.command.progress_files import ProgressFiles
from prime_train.programs.command.reported import find_printed_folder, keep_printed, keep_reported
from prime_train.programs.command.trainer import KnownTrainer, know_run
from prime_train.programs.log_observer import LogObserver
from prime_train.programs.seen_checkpoints import SeenCheckpoints, compare
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.live_values import describe_values
from prime_train.supervise.watches.watch import Alarm

ROLE = "trainer"
WATCH = "command"
_LOOK_AROUND_S = 2.0  # for new files and checkpoints
# The phases of profiles, as the limits of silence know them.
_PHASES = {"save": "checkpoint", "compile": "compile", "setup": "setup", "data": "data"}


def live_folder(run_dir: RunDir, attempt: int) -> Path:
    """Where prime_train.live reports to."""
    return run_dir.attempt(attempt) / "live"


class CommandObserver(LogObserver):
    """One attempt of a command."""

    def __init__(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int = 0) -> None:
        super().__init__(WATCH, run_dir, attempt, ROLE)
        self._trainer = know_run(run, run_dir)
        self._spec = run
        self._resume_step = resume_step
        self._own_log = run_dir.log(attempt, ROLE)
        self._target = None if run.run.max_steps >= ENDLESS_STEPS else run.run.max_steps
        self._total: int | None = None  # the last step, where only the trainer knows it
        phases = self._trainer.profile.phases if self._trainer.profile is not None else ()
        allowed_s = run.prime_train.heartbeat.slow_phase_limit_s  # a longer time of the config counts
        self._limits_s = {phase.name: max(phase.limit_s, allowed_s) for phase in phases}
        self._output = GrowingFile(self._own_log)
        self._lines = LogProgress(self._trainer.lines, phases, self._target)
        self._files = ProgressFiles(self._trainer)
        self._live = LiveLines(live_folder(run_dir, attempt))
        self._listens = self._listens_to_saves = False
        self._seen = SeenCheckpoints()
        self._whole: dict[SeenPaths, SavedCheckpoint] = {}  # judged once: there may be hundreds
        self._step, self._reported_step = 0, 0
        self._loss: float | None = None
        self._tokens_per_s: float | None = None
        self._phase = ""
        self._end_line, self._has_stop_line = EndLine(), False
        self._reports_end = self._reports_finish = False  # through live: its last step or the end, the end itself
        self._is_past_last = False
        self._unreadable: ProgressMark | None = None  # the line which reports that its checkpoint cannot be loaded
        self._looked_s = float("-inf")

    def _prepare(self) -> None:
        self._files.prepare()
        self._look_at_checkpoints(time.monotonic())

    def _turn(self, *, is_last: bool) -> None:
        now_s = time.monotonic()
        for piece in self._output.take(is_last=is_last):
            self._take_printed(self._lines.feed(piece))
        for line in self._live.take():
            self._take_live(line)
        if self._is_stopping and self._listens:
            self._ask_stop()
        if self._listens_to_saves:
            self._pass_save_on()
        if is_last:
            self._take_printed(self._lines.finish())
        if is_last or now_s - self._looked_s >= _LOOK_AROUND_S:
            self._looked_s = now_s
            self._take(self._files.take(is_last=is_last))
            self._report_step()  # before the checkpoints, which follow their step
            self._look_at_checkpoints(now_s)
        self._report_step()
        self._report_last_step()

    def _take_printed(self, marks: Sequence[ProgressMark]) -> None:
        """Take the marks of the output. Those of files come later, and may count something else."""
        for mark in marks:
            self._end_line.see(mark)
        self._take(marks)

    def _take(self, marks: Iterable[ProgressMark]) -> None:
        for mark in marks:
            if mark.total and self._target is None and (mark.kind != "step" or mark.counts_steps):
                self._target = self._total = mark.total
            if mark.loss is not None and mark.kind in ("step", "loss"):
                self._loss = mark.loss
            if mark.tokens_per_s is not None:
                self._tokens_per_s = mark.tokens_per_s
            if mark.kind in ("save_start", "save_done") and mark.path:
                self._learn_place(mark)
            match mark.kind:
                case "step" if mark.step is not None and mark.counts_steps and mark.step > self._step:
                    self._step, self._phase = mark.step, ""
                case "phase":
                    self._enter(_PHASES.get(mark.phase, "evaluate"), mark.phase, self._limits_s[mark.phase])
                case "save_start":
                    self._enter("checkpoint", "")
                case "stop":
                    self._has_stop_line = True
                case "unreadable" if not self._unreadable:
                    self._unreadable = mark

    def _learn_place(self, mark: ProgressMark) -> None:
        """Take the folder of the checkpoints from a line about a save, where nothing else names it."""
        trainer = self._trainer
        if trainer.checkpoints is not None or not trainer.layouts:
            return
        folder = find_printed_folder(trainer.cwd / mark.path, mark.step, trainer.layouts)
        if folder is not None:
            with suppress(OSError):  # a full disk; the next save is printed, too
                keep_printed(self._run_dir, folder)
                self._trainer = know_run(self._spec, self._run_dir)

    def _report_settings(self, version: int, step: int) -> None:
        """A change that the script has taken. A plan that cannot be read is reported by its version alone."""
        texts: tuple[str, ...] = ()
        with suppress(OSError, ValueError):
            texts = describe_values(read_plan(self._run_dir.settings, version).values)
        self._log.append(SettingsApplied(self._attempt, version, step, texts, self._target or ENDLESS_STEPS))

    def _take_live(self, line: LiveLine) -> None:
        """A line of a script or callback that reports by itself: it is certain."""
        if line.listens and not self._listens:
            self._listens = True
            self._log.append(StopListened(self._attempt))
        if line.settings and line.first and line.rank == 0:
            self._report_settings(line.settings, line.first)
        if line.saves and not self._listens_to_saves:
            self._listens_to_saves = True
            self._log.append(SaveListened(self._attempt))
        if line.total:
            self._target = self._total = line.total
        self._reports_finish = self._reports_finish or line.finished
        if line.checkpoint:
            with suppress(OSError):  # a full disk; the next checkpoint is reported, too
                keep_reported(self._run_dir, line)
                self._trainer = know_run(self._spec, self._run_dir)
                self._begin_to_see(line.of_step)
        self._reports_end = self._reports_end or line.finished or line.total is not None
        if line.loss is not None:
            self._loss = line.loss
        if line.step > self._step:
            self._step, self._phase = line.step, ""
        if line.phase:
            self._enter(_PHASES.get(line.phase, line.phase), "", line.limit_s)

    def _begin_to_see(self, reported_step: int | None) -> None:
        """Note what is in a folder that was not known before: all of it was there, except what is reported just now."""
        folder, layout = self._trainer.checkpoints, self._trainer.layout
        if self._seen.began or folder is None or layout is None:
            return
        found = step_folders.checkpoints([folder], layout, self._whole)
        before = [checkpoint for checkpoint in found if checkpoint.step != reported_step]
        self._seen, _ = compare(self._seen, before, time.monotonic(), self._attempt)

    def _ask_stop(self) -> None:
        """Create the file that should_stop() looks for. Without it the trainer gets SIGTERM after its grace."""
        with suppress(OSError):
            (self._live.folder / STOP).touch()

    def _pass_save_on(self) -> None:
        """Give the file of a request to save the place where should_save() looks for it."""
        with suppress(OSError):
            self._run_dir.save_request(self._attempt).rename(self._live.folder / SAVE)

    def _enter(self, phase: str, detail: str, limit_s: float = 0.0) -> None:
        """Report a phase that is slow on purpose, once until the next step. `limit_s`: 0 where it is not known."""
        if phase != self._phase:
            self._report_step()
            self._phase = phase
            self._log.append(Phase(self._attempt, phase, detail, limit_s))

    def _report_step(self) -> None:
        """Report the newest step, at most twice a second: several may have been read at once."""
        if self._step > self._reported_step:
            self._reported_step = self._step
            known = (self._step, self._loss, self._tokens_per_s)
            self._log.append(Progress(self._attempt, *known, 0, total=self._total))
            self._write_metrics()

    def _write_metrics(self) -> None:
        """Add a line to metrics.jsonl, from which the report and W&B have their curves. A full disk costs the line."""
        values = {"step": self._step, "loss": self._loss, "tokens_per_s": self._tokens_per_s}
        finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        with suppress(OSError):
            append_line(self._run_dir.metrics, json.dumps(finite))

    def _report_last_step(self) -> None:
        """Report once that the last step is done: what follows, as a save of the whole model, has no steps."""
        if self._target is not None and self._step >= self._target and not self._is_past_last:
            self._is_past_last = True
            self._enter("export", "after its last step")

    def _look_at_checkpoints(self, now_s: float) -> None:
        """Report the checkpoints that the layout calls complete. In an unknown layout there are none."""
        folder, layout = self._trainer.checkpoints, self._trainer.layout
        if folder is None:
            return
        self._alarms = () if hold_folder(folder) else (_shared_folder(folder),)
        if layout is None:
            return
        found = step_folders.checkpoints([folder], layout, self._whole)
        self._seen, events = compare(self._seen, found, now_s, self._attempt)
        for event in events:
            self._log.append(event)

    # --- how it ended ---

    def _report_unreadable(self) -> None:
        """Report the checkpoint that the attempt began with, if a file of it kept the trainer from a first step."""
        if self._unreadable is None or self._step or not self._resume_step:
            return
        saved = (one.path for one in self._whole.values() if one.step == self._resume_step)
        if any(Path(self._unreadable.path).is_relative_to(path) for path in saved):
            self._log.append(CheckpointUnreadable(self._attempt, self._resume_step, self._unreadable.text))

    def _write_end(self, returncode: int | None) -> None:
        if self._is_being_ended:
            return
        if returncode != 0 and not self._is_stopping:
            self._report_unreadable()
        seen = SeenEnd(
            attempt=self._attempt,
            returncode=returncode,
            step=self._step,
            first_step=self._resume_step,
            target=self._target,
            newest_complete=self._seen.newest_complete,
            is_stopping=self._is_stopping,
            # A summary in the log may also follow an early stop. A trainer that reports its end knows the difference.
            has_end_line=self._reports_finish if self._reports_end else self._end_line.is_seen,
            has_stop_line=self._has_stop_line,
            log=str(self._own_log),
            loss=math.nan if self._loss is None else self._loss,
            newest=self._seen.newest,
        )
        rules = read_rules(self._trainer)
        if self._reports_end:  # as if a profile described it
            rules = replace(rules, is_described=True, zero_is_finished=False, end_line=True)
        event = judge_end(rules, seen)
        if event is not None:
            self._log.append(event)


def _shared_folder(folder: Path) -> Alarm:
    what = f"another supervised run writes into {folder}, too"
    why = "each of the two would resume from the checkpoints of the other, and delete them"
    fix = "stop one of them, and give it a folder of its own"
    return Alarm(WATCH, "shared_folder", str(folder), "alert", "config", what, why, fix, str(folder))


def read_rules(trainer: KnownTrainer) -> EndRules:
    """What the exit codes of a trainer mean, by run.toml and by its profile."""
    exits, given = trainer.exits, trainer.command.exits
    return EndRules(
        title=trainer.title,
        is_described=trainer.profile is not None,
        zero_is_finished=exits.zero_is_finished,
        end_line=exits.end_line,
        finished=given.finished,
        failed=given.failed,
        resumes=tuple(code for code, meaning in exits.codes.items() if meaning.startswith("resume")),
        bad_node=tuple(code for code, meaning in exits.codes.items() if meaning.startswith("node")),
    )
