"""Answers one request: finds the module of its kind. Writes no event itself."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.events import Event, RequestAnswered
from prime_train.spec import RunSpec
from prime_train.supervise.answers.command_scene import CommandScene, ListGpus
from prime_train.supervise.answers.commands import answer_command
from prime_train.supervise.answers.settings import SettingsChecked, SettingsRequests
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Program
from prime_train.supervise.processes.requests import COMMAND_REQUESTED, SETTINGS_REQUESTED, Request


class Answers:
    """Answers the requests to one supervisor."""

    def __init__(
        self, run: RunSpec, run_dir: RunDir, program: Program, list_gpus: ListGpus, inbox: SimpleQueue[object]
    ) -> None:
        self._run = run
        self._run_dir = run_dir
        self._program = program
        self._list_gpus = list_gpus
        self._settings = SettingsRequests(run_dir, inbox)

    def answer(self, request: Request, state: State) -> Iterator[Event]:
        """The events of a request other than one to stop: what is accepted, and last the RequestAnswered.

        A request that takes long to answer returns none: its result comes into the inbox.
        """
        if request.kind == SETTINGS_REQUESTED:
            yield from self._settings.take(request, state)
        elif request.kind == COMMAND_REQUESTED:
            scene = CommandScene(state, self._run, self._run_dir, self._program, self._list_gpus)
            yield from answer_command(request, scene)
        else:
            what = f"the supervisor of {state.run} answers no {request.kind}"
            why = "no module of this prime-train answers it"
            yield RequestAnswered(request.id, request.kind, "refused", what, why, "install one prime-train everywhere")

    def handle_message(self, state: State, message: object) -> Iterator[Event]:
        """The events of a result from the inbox."""
        if isinstance(message, SettingsChecked):
            yield from self._settings.finish(message, state)

    def close(self, state: State, *, finished: bool) -> Iterator[Event]:
        """The answers to what the end of the run leaves open."""
        yield from self._settings.close(state, finished=finished)

    def processes(self) -> tuple[Identity, ...]:
        """Its processes, which belong to no attempt."""
        return self._settings.processes()
