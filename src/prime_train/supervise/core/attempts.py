"""Launches the attempts of a supervision, starts their processes, and writes the events of their ends.

The policy decides when; nothing here does.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace

from prime_train import events
from prime_train.checkpoints import aside, in_use
from prime_train.checkpoints.packing import foreign
from prime_train.core import outside
from prime_train.core.errors import UNWRITABLE, UserError
from prime_train.core.process_id import own_identity
from prime_train.core.rundir import RunDir, make_folder, write_atomic
from prime_train.spec import RunSpec
from prime_train.supervise.core import attempt_end
from prime_train.supervise.core.journal import Journal
from prime_train.supervise.core.policy import Policy, compute_backoff_s
from prime_train.supervise.core.state import Halt
from prime_train.supervise.evidence.diagnose import EndCause, judge
from prime_train.supervise.launch import environment
from prime_train.supervise.launch.program import Launch, Program, to_json
from prime_train.supervise.launch.run_directory import (
    apply_micro_batch,
    choose_checkpoint,
    restore_run_spec,
    would_lose_checkpoints,
    write_applied,
)
from prime_train.supervise.machines.protocol import ROLE as RELAY
from prime_train.supervise.processes.children import Children
from prime_train.supervise.processes.process import Exited
from prime_train.supervise.processes.requests import COMMAND_REQUESTED
from prime_train.supervise.services.services import RunServices

LONG_S = 600.0  # an attempt that lived for so long is no sign of a loop; 144 of them in a day do no harm
BACKGROUND_LIMIT_S = 3.0  # for helpers of a trainer to end after it
SPARE = 2  # attempts beyond those of the policy, which does not count every attempt


@dataclass(frozen=True, slots=True)
class Launched:
    """The launches of this process. Times are those of the monotonic clock."""

    fruitless: int = 0  # in a row: short, and without a newer complete checkpoint than any before
    best_complete: int = 0
    latest_s: float | None = None
    halt: Halt | None = None  # that of the last launch for which a person asked


def count(launched: Launched, newest_complete: int, now_s: float, halt: Halt | None = None) -> Launched:
    """After one more launch, which found `newest_complete` on the disk. `halt`: the attempt before ended for it."""
    if halt is not None and halt != launched.halt:  # a person asked for it, once
        return Launched(best_complete=newest_complete, latest_s=now_s, halt=halt)
    grew = newest_complete > launched.best_complete
    was_long = launched.latest_s is not None and now_s - launched.latest_s >= LONG_S
    fruitless = 0 if grew or was_long or launched.latest_s is None else launched.fruitless + 1
    return replace(
        launched, fruitless=fruitless, best_complete=max(launched.best_complete, newest_complete), latest_s=now_s
    )


def is_spent(launched: Launched, policy: Policy) -> bool:
    """Whether no launch may follow. A run whose events are sound is ended by the policy before this."""
    return launched.fruitless >= policy.max_fruitless_attempts + len(policy.micro_batches) + SPARE


def earliest_s(launched: Launched, policy: Policy) -> float:
    """When the next launch may happen. It is that of the policy in a run whose events are sound."""
    if launched.latest_s is None or launched.fruitless == 0:
        return 0.0
    return launched.latest_s + compute_backoff_s(launched.fruitless, policy)


@dataclass(slots=True)
class Attempts:
    """All attempts of one supervision, one after another. `run` changes when its micro-batch shrinks."""

    run: RunSpec
    run_dir: RunDir
    program: Program
    policy: Policy
    journal: Journal
    services: RunServices
    children: Children
    secrets: tuple[str, ...]
    _launches: tuple[Launch, ...] = ()
    _oom_kills: int = 0  # before the attempt
    _launched: Launched = field(default_factory=Launched)
    _marks: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _protected_step: int = 0

    def may_launch(self) -> bool:
        """Whether the launches before are long enough ago, and the services allow one."""
        is_early = time.monotonic() < earliest_s(self._launched, self.policy)
        return not is_early and self.services.may_launch(self.journal.state)

    def launch(self, attempt: int) -> None:
        """Plan the next attempt. Its processes start one by one, because each may wait for the ones before it."""
        # A checkpoint must not be deleted or packed between its choice and the start of the trainer that loads it.
        self.services.hold_checkpoints()
        set_aside = self._go_back()
        if set_aside is None:
            return
        found = self.program.checkpoints(self.run, self.run_dir)
        chosen, rejected = choose_checkpoint(found, self.journal.state.unreadable)
        step = self.journal.state.go_back_to
        if step and chosen != step:
            self._refuse_to_go_back(step, f"the checkpoint of step {step:,} is not found again", "nothing was started")
            return
        rejected = (*set_aside, *rejected)
        self._launched = count(self._launched, chosen, time.monotonic(), self.journal.state.halt)
        if is_spent(self._launched, self.policy):
            raise attempt_end.endless_launches_error(self._launched.fruitless, self.run_dir)
        self.run = apply_micro_batch(self.run, self.run_dir, self.journal.state.micro_batch)
        self._launches = self.program.plan(self.run, self.run_dir, attempt, chosen)
        self._clear_remains(attempt)
        roles = tuple(launch.role for launch in self._launches)
        services = tuple(launch.role for launch in self._launches if launch.ready is not None)
        # Before anything starts: a process without this event would belong to no attempt if the supervisor died here.
        knows_step = self.program.knows_checkpoints(self.run, self.run_dir)
        self.journal.append(events.LaunchAsked(attempt, chosen, rejected, roles, services, knows_step))
        places = self.program.places(self.run, self.run_dir)
        if packed := foreign.find_newer(places, chosen, self.journal.state.unreadable):
            self._end(None, attempt_end.packed_checkpoint(packed, chosen, foreign.locate(places, packed), self.run_dir))
            return
        # Only a person may decide to throw away the work of more than one interval.
        if chosen == 0 and would_lose_checkpoints(found, self.run):
            self._end(None, attempt_end.no_loadable_checkpoint(rejected, self.run_dir))
            return
        restore_run_spec(self.run, self.run_dir)
        write_applied(self.journal.state.settings_applied, self.run_dir, attempt, chosen)
        if not self._make_way(attempt):
            return
        with contextlib.suppress(FileExistsError):  # a file has its name: `stop` sends a signal then
            make_folder(self.run_dir.requests(attempt))
        self._oom_kills = attempt_end.count_oom_kills()
        self.services.begin_attempt(self.run, self._launches, attempt, chosen)

    def protect(self) -> None:
        """Keep the checkpoint to which a person goes back: the save at the end of the attempt may delete old ones."""
        step = self.journal.state.go_back_to
        if step == self._protected_step:
            return
        self._protected_step = step
        self._marks.close()  # of another step, where a later command named this one
        if step:
            found = self.program.checkpoints(self.run, self.run_dir)
            folder = next((one.path for one in found if one.step == step and one.path.is_dir()), None)
            with contextlib.suppress(OSError):  # a full disk: `_go_back` finds out whether it is still there
                if folder is not None:
                    self._marks.enter_context(in_use.using(folder))

    def _go_back(self) -> tuple[str, ...] | None:
        """Give the checkpoints after the step of a person's choice other names. None if no attempt may start from it.

        Returns which were renamed.
        """
        state = self.journal.state
        if not state.go_back_to:
            return ()
        try:
            text = outside.read_text(self.run_dir.config, outside.CONFIG_BYTES, self.run_dir.path)
            opened = self.program.open_run(text, self.run, self.run_dir, state.go_back_to)
        except (UserError, OSError, ValueError) as error:
            parts = error.parts() if isinstance(error, UserError) else {"what": str(error), "why": "", "fix": ""}
            self._refuse_to_go_back(state.go_back_to, parts["what"], parts["why"], parts["fix"])
            return None
        return tuple(note for note in opened.notes if "kept as" in note)

    def _refuse_to_go_back(self, step: int, what: str, why: str, fix: str = "prime-train ckpt list RUN") -> None:
        """Answer the command; the run is paused then, because no attempt may start from another step."""
        commands = (one.accepted for one in self.journal.state.commands)
        asked = next(one for one in commands if one.command == "go_back" and one.step == step)
        self.journal.append(
            events.RequestAnswered(
                asked.request_id, COMMAND_REQUESTED, "failed", what, why, fix, str(self.run_dir.path)
            )
        )

    def _make_way(self, attempt: int) -> bool:
        """Take broken checkpoints out of the way of a trainer that would load them. Whether that was possible."""
        how = self.program.aside(self.run)
        try:
            places, unreadable = self.program.places(self.run, self.run_dir), self.journal.state.unreadable
            changes = aside.make_way(places, how, unreadable)
        except OSError as error:
            self._end(None, attempt_end.immovable_checkpoint(error))
            return False
        for change in changes:
            for path, to in zip(change.paths, change.to, strict=True):
                about = (attempt, change.step, change.problem, str(path), str(to), change.tracked)
                self.journal.append(events.CheckpointSetAside(*about))
        return True

    def _clear_remains(self, attempt: int) -> None:
        """Delete what would end or confuse an attempt at once.

        On a new machine the newest events may be missing, so the number of an attempt may have been used, and its
        folder exists.
        """
        requests = (self.run_dir.stop_request(attempt), self.run_dir.save_request(attempt))
        for remains in (*requests, self.run_dir.rendezvous(attempt)):
            with contextlib.suppress(OSError):
                remains.unlink()

    def start(self, attempt: int, role: str) -> None:
        """Start one process of the attempt. If that fails, the attempt ends."""
        launch = self._add_environment(next(launch for launch in self._launches if launch.role == role), attempt)
        try:
            make_folder(self.run_dir.attempt(attempt))
            write_atomic(self.run_dir.launch(attempt, role), to_json(environment.hide(launch, self.secrets)))
            child = self.children.start(launch, attempt).identity
        except OSError as error:
            if error.errno in UNWRITABLE:
                raise
            self.children.end_rest(gently=False)
            self._end(None, attempt_end.start_failure(error, self.run_dir.launch(attempt, role)))
            return
        self.journal.append(events.ChildStarted(attempt, role, child.pid, child.start_ticks, str(launch.log)))
        self.services.await_ready(launch, attempt, child)

    def _add_environment(self, launch: Launch, attempt: int) -> Launch:
        host = environment.read_host(str(own_identity()))
        needs = self.program.environment(launch.role, self.run, self.run_dir, attempt, host)
        added = environment.plan(needs, self.run_dir, host)
        gpus = self.services.variables(self.journal.state, launch.role)
        return replace(launch, variables=(*added, *launch.variables, *gpus))

    def finish(self, exited: Exited | None) -> None:
        """A child exited, or none will: end the others, read the last events, and judge the end of the attempt."""
        services = self.journal.state.live.services if self.journal.state.live else ()
        # After the trainer's exit the others end by themselves. A trainer that lost one of them cannot save.
        gently = exited is not None and exited.role not in (*services, RELAY)
        may_hide = self.program.must_stay and exited is not None and exited.returncode == 0
        hidden = self.children.list_left(BACKGROUND_LIMIT_S) if may_hide else []
        # Before the judgement: only when all processes have ended are their last events on the disk.
        stuck = self.children.end_rest(gently=gently)
        self.journal.read()
        for event in self.services.last_events(self.journal.state, exited.returncode if exited is not None else None):
            self.journal.append(event)
        self.journal.read()
        live = self.journal.state.live
        if live is None:
            return
        found = attempt_end.collect_evidence(self.journal.state, live, self.policy, self.run_dir, exited)
        oom_kills = attempt_end.count_oom_kills() - self._oom_kills
        found = replace(found, log_cause=self.services.cause(), oom_kills=oom_kills)
        state = self.journal.state
        cause = attempt_end.unkillable_processes(stuck, found.log) if stuck else judge(state, live, found)
        if hidden and cause.what:  # else it is certain that the training had ended
            cause = attempt_end.background_processes(hidden, found.log)
        self._end(found.returncode, attempt_end.reconsider_full_disk(cause, state, self.policy))

    def end_stale(self) -> None:
        """Write the event of the end of an attempt whose supervisor died and whose processes have ended."""
        live = self.journal.state.live
        if live is not None:
            self._end(None, judge(self.journal.state, live, attempt_end.collect_orphan_evidence(live, self.run_dir)))

    def _end(self, returncode: int | None, cause: EndCause) -> None:
        found = self.program.checkpoints(self.run, self.run_dir)
        self.journal.append(attempt_end.build_end_event(self.journal.state, returncode, cause, found, self.secrets))
        self.services.end_attempt()
