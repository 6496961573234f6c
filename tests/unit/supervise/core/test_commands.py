"""A person's commands over written histories, and over random worlds in which they come at any moment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train import events
from prime_train.checkpoints.layout import PIN, SavedCheckpoint
from prime_train.core.errors import ExitCode
from prime_train.core.rundir import RunDir
from prime_train.events import Event, Record, TrainerEvent
from prime_train.supervise.answers.command_scene import CommandScene
from prime_train.supervise.answers.commands import answer_command
from prime_train.supervise.core import actions
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.policy import Policy, decide
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Role
from prime_train.supervise.machines.protocol import NOT_THERE
from prime_train.supervise.processes.requests import COMMAND_REQUESTED, Request
from tests.fakes.supervisor import fake_run

POLICY = Policy(backoff_s=0.0, backoff_max_s=0.0)
STOP = "stop"
COMMANDS = ("pause", "resume", "checkpoint", "go_back", "drain", "test", "return")
GPUS = (("0", "GPU-0"), ("1", "GPU-1"), ("2", "GPU-2"))


@dataclass
class World:
    """A supervisor that acts as the loop does, and a trainer that does what the test says."""

    tmp: Any
    state: State = field(default_factory=State)
    written: list[Event] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    now_s: float = 0.0
    asked: int = 0
    knows_checkpoints: bool = True
    used: tuple[str, ...] = ()  # by the live attempt
    testing: tuple[str, tuple[str, ...]] = ("", ())
    machines: int = 1

    def write(self, event: Event) -> None:
        self.now_s += 1.0
        self.written.append(event)
        writer = f"trainer-{event.attempt}" if isinstance(event, TrainerEvent) else "supervisor"
        self.state = fold(self.state, Record(self.now_s, writer, len(self.written), event))

    def settle(self) -> None:
        """Decide and act until the supervisor waits."""
        for _ in range(50):
            match decide(self.state, POLICY, self.now_s):
                case actions.PlanLaunch(attempt=attempt):
                    assert self.state.live is None
                    assert self.state.state != "paused"
                    self.launch(attempt)
                case actions.StartRole(attempt=attempt, role=role):
                    self.write(events.ChildStarted(attempt, role, 7, 7, "log"))
                case actions.AskStop(attempt=attempt, reason=reason):
                    self.write(events.SignalSent(attempt, "stop_requested", reason))
                case actions.AskSave(attempt=attempt, reason=reason):
                    self.write(events.SignalSent(attempt, "save_requested", reason))
                case actions.StartGpuTest(request_id=request_id, gpus=gpus):
                    assert self.state.live is None or not set(gpus) & set(self.used)
                    self.write(events.GpuTestBegun(request_id, gpus))
                    self.testing = (request_id, gpus)
                case actions.AnswerCommand(answer=answer):
                    self.write(answer)
                case actions.Close(state=end, exit_code=code, reason=reason):
                    self.write(events.RunClosed(end, int(code), reason))
                case actions.GiveUp():
                    self.end("stopped")
                case actions.Wait() | actions.Nothing() | actions.Suspect():
                    return
                case other:
                    raise AssertionError(other)
        raise AssertionError("it decides for ever")

    def launch(self, attempt: int) -> None:
        if step := self.state.go_back_to:
            self.saved = [one for one in self.saved if one <= step]
        self.used = tuple(gpu for _, gpu in GPUS if gpu not in self.state.left_out)
        assert not set(self.testing[1]) & set(self.used)
        self.write(events.LaunchAsked(attempt, max(self.saved, default=0)))

    def give(self, command: str, *gpus: str) -> None:
        if command == STOP:
            self.write(events.StopAsked("prime-train stop"))
            return
        self.asked += 1
        body: dict[str, Any] = {"command": command, "by": "a@b"}
        if command == "go_back" and self.saved:
            body["step"] = self.saved[0]
        if command in ("drain", "test", "return"):
            body["gpus"] = [*gpus] or [GPUS[self.asked % len(GPUS)][1]]
        request = Request(COMMAND_REQUESTED, f"id-{self.asked}", body)
        for event in list(answer_command(request, self.scene())):
            self.write(event)

    def scene(self) -> CommandScene:
        found = [SimpleNamespace(step=step, problem="", complete=True) for step in sorted(self.saved, reverse=True)]
        program: Any = SimpleNamespace(
            title="the trainer",
            saves_by_file=True,
            knows_checkpoints=lambda *_: self.knows_checkpoints,
            checkpoints=lambda *_: found,
            roles=lambda *_: (Role("trainer", 1),),
        )
        run = fake_run(self.tmp, 10**6)
        run = replace(run, parallel=replace(run.parallel, processes=self.machines, machines=self.machines))
        return CommandScene(self.state, run, RunDir(self.tmp), program, lambda: GPUS)

    def finish_test(self) -> None:
        (request_id, gpus), self.testing = self.testing, ("", ())
        for gpu in gpus:
            self.write(events.GpuTested(request_id, gpu, True, "right", 1.0))

    def step(self) -> None:
        live = self.state.live
        if live is not None and live.children:
            self.write(events.Progress(live.number, self.state.step + 1, 1.0, 1.0, 1))

    def save(self) -> None:
        live = self.state.live
        if live is not None and live.children and self.state.step > max(self.saved, default=0):
            self.saved.append(self.state.step)
            self.write(events.CheckpointSaved(live.number, self.state.step, 1, 0.0, 0.0))

    def end(self, outcome: str) -> None:
        """The trainer ends: as it was asked to, or by a crash."""
        live = self.state.live
        is_asked = live is not None and any(sent.signal == "stop_requested" for sent in live.sent)
        if live is None or (outcome == "stopped" and live.children and not is_asked):
            return
        if live.children and outcome == "stopped":
            self.save()
            self.write(events.TrainerStopped(live.number, self.state.step))
        newest = max(self.saved, default=0)
        outcome, cause = ("stopped", "") if outcome == "stopped" else ("failed", "signal")
        self.write(events.AttemptEnded(live.number, 0, outcome, cause, "", "", "", "", newest))


def opened(tmp: Any) -> World:
    world = World(tmp)
    world.write(events.RunOpened("r", 1, 10**6, "0.1"))
    world.settle()
    return world


def final_answers(world: World) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for event in world.written:
        if isinstance(event, events.RequestAnswered):
            found.setdefault(event.request_id, []).append(event.outcome)
    return found


MOVES = st.lists(st.sampled_from((*COMMANDS, "step", "save", "stopped", "stopped", "crash", "tested")), max_size=40)


@given(MOVES, st.booleans())
def test_every_command_is_answered_and_a_paused_run_stays_paused(
    tmp_path_factory: Any, moves: list[str], stops: bool
) -> None:
    world = opened(tmp_path_factory.getbasetemp() / "run")
    # Two tests at most wait for each other by then: those of drains and of GPUs that are left out.
    for move in [*moves, *([STOP] if stops else ["pause"]), "stopped", *["tested"] * len(moves)]:
        if world.state.closed:
            break
        match move:
            case "step":
                world.step()
            case "save":
                world.save()
            case "stopped":
                world.end(move)
            case "tested":
                world.finish_test()
            case "crash":
                world.step()
                world.save()  # each attempt makes progress, so the run is not given up
                world.end(move)
            case command:
                world.give(command)
        world.settle()
        assert len(world.state.commands) <= world.asked
        if world.state.state == "paused":
            assert world.state.live is None
    state = world.state
    assert state.live is None
    # The last command ended the run or paused it, whatever came before.
    if stops:
        assert (state.state, state.exit_code) == ("stopped", ExitCode.RESUMABLE)
    elif not state.closed:
        assert state.state == "paused"
        assert state.commands == ()
    for outcomes in final_answers(world).values():
        counts = Counter(outcome == "accepted" for outcome in outcomes)
        assert counts[False] <= 1
        assert counts[True] <= 1
        if not state.closed:
            assert counts[False] == 1
    launches = [event for event in world.written if isinstance(event, events.LaunchAsked)]
    crashes = sum(isinstance(event, events.AttemptEnded) and event.outcome == "failed" for event in world.written)
    assert state.restarts <= crashes
    assert [one.attempt for one in launches] == list(range(1, len(launches) + 1))


def test_a_pause_is_no_restart_and_no_failure(tmp_path: Any) -> None:
    world = opened(tmp_path)
    for _ in range(20):
        world.step()
        for move in ("pause", "resume"):
            world.give(move)
            world.settle()
            world.end("stopped")
            world.settle()
    assert (world.state.restarts, world.state.fruitless, world.state.closed) == (0, 0, False)
    assert world.state.attempt_number == 21


def test_a_crash_during_a_pause_leaves_the_run_paused(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.step()
    world.give("pause")
    world.settle()
    world.end("crash")
    world.settle()
    assert world.state.state == "paused"
    assert world.state.attempt is not None
    assert world.state.attempt.outcome == "failed"


def test_a_run_that_finishes_instead_is_not_called_paused(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.step()
    world.give("pause")
    world.settle()
    live = world.state.live
    assert live is not None
    world.write(events.AttemptEnded(live.number, 0, "finished", "", "", "", "", "", 1))
    world.settle()
    assert final_answers(world)["id-1"] == ["accepted", "failed"]
    assert (world.state.state, world.state.closed) == ("finished", True)


def test_going_back_measures_progress_from_there(tmp_path: Any) -> None:
    world = opened(tmp_path)
    for _ in range(3):
        world.step()
        world.save()
    assert world.saved == [1, 2, 3]
    world.give("go_back")
    world.settle()
    world.end("stopped")
    world.settle()
    assert world.state.attempt is not None
    assert (world.state.attempt.resume_step, world.state.best_complete, world.state.go_back_to) == (1, 1, 0)
    world.step()
    world.save()
    world.end("crash")
    assert world.state.attempt is not None
    assert world.state.attempt.fruitful  # step 2 was there before, and was given up


def test_a_stop_during_a_pause_is_no_second_stop_and_waits_for_the_save(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.step()
    world.give("pause")
    world.settle()
    world.give(STOP)
    assert world.state.halt is None
    assert not world.state.stop_at_once
    world.settle()
    world.end("stopped")
    world.settle()
    assert (world.state.state, world.saved) == ("stopped", [1])


def test_a_drained_gpu_is_tested_when_its_attempt_has_ended_and_the_run_goes_on(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.step()
    world.give("drain")
    world.settle()
    assert not any(world.testing)
    world.end("stopped")
    world.settle()
    drained = GPUS[1][1]
    assert world.testing == ("id-1", (drained,))
    assert [*world.used] == ["GPU-0", "GPU-2"]
    assert (world.state.attempt_number, world.state.restarts) == (2, 0)
    assert final_answers(world) == {"id-1": ["accepted"]}
    world.finish_test()
    world.settle()
    assert final_answers(world) == {"id-1": ["accepted", "done"]}


def test_a_drain_that_would_lose_the_training_is_refused_like_a_pause(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.knows_checkpoints = False
    world.step()
    for command in ("drain", "pause"):
        world.give(command)
    world.settle()
    assert final_answers(world) == {"id-1": ["refused"], "id-2": ["refused"]}
    assert (world.state.left_out, world.state.live is not None) == ((), True)


def test_a_gpu_that_is_given_back_is_not_left_out_for_its_old_failures(tmp_path: Any) -> None:
    world = opened(tmp_path)
    for attempt in (1, 2):
        world.step()
        world.save()
        where = ("it is lost", "a riser", "reseat it", "GPU-0", 0)
        world.write(events.AlarmRaised(attempt, "gpu", "gpu_lost", "GPU 0", "restart", "hardware", *where))
        world.end("crash")
        world.write(events.AlarmCleared(attempt, "gpu", "gpu_lost", "GPU 0"))
        if attempt == 1:
            world.settle()
    world.write(events.GpuLeftOut("GPU-0", "two attempts"))
    world.write(events.GpuReturned("GPU-0", "by a@b"))
    world.settle()
    assert (world.state.left_out, world.used) == ((), ("GPU-0", "GPU-1", "GPU-2"))


def test_another_supervisor_does_not_inherit_a_pause(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.give("pause")
    world.settle()
    world.end("stopped")
    world.settle()
    assert world.state.state == "paused"
    world.write(events.RunOpened("r", 2, 10**6, "0.1"))
    world.settle()
    assert world.state.attempt_number == 2


def test_a_save_that_began_before_the_request_is_no_answer(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.step()
    assert world.state.live is not None
    world.write(events.CheckpointStarted(1, 1))
    world.give("checkpoint")
    world.settle()
    world.save()
    world.settle()
    assert final_answers(world) == {"id-1": ["accepted"]}
    world.step()
    world.save()
    world.settle()
    assert final_answers(world) == {"id-1": ["accepted", "done"]}


def test_no_attempt_begins_beside_the_test_of_a_gpu_that_it_uses(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.step()
    for move in ("pause", "test", "test"):
        world.give(move)
        world.settle()
        world.end("stopped")
        world.settle()
    assert world.testing == ("id-2", ("GPU-2",))  # the other test waits for it
    world.give("resume")
    world.settle()
    assert (world.state.live, world.state.attempt_number) == (None, 1)
    world.finish_test()
    world.settle()
    assert (world.testing, world.state.live) == (("id-3", ("GPU-0",)), None)
    world.finish_test()
    world.settle()
    assert (world.state.attempt_number, world.state.live is not None) == (2, True)
    assert {outcomes[-1] for outcomes in final_answers(world).values()} == {"done"}


def test_a_test_that_is_asked_during_a_pause_waits_for_the_end_of_the_attempt(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.step()
    world.give("test")
    assert final_answers(world) == {"id-1": ["refused"]}, "the attempt uses the GPU and goes on"
    for move in ("pause", "test"):
        world.give(move)
        world.settle()
    assert (world.testing, world.state.live is None) == (("", ()), False)
    world.end("stopped")
    world.settle()
    assert world.testing == ("id-3", ("GPU-0",))
    world.finish_test()
    world.settle()
    assert {key: outcomes[-1] for key, outcomes in final_answers(world).items() if key != "id-1"} == {
        "id-2": "done",
        "id-3": "done",
    }
    assert world.state.state == "paused"


def pin(scene: CommandScene, command: str, step: object) -> list[Event]:
    body = {"command": command, "step": step, "by": "a@b"}
    return list(answer_command(Request(COMMAND_REQUESTED, "id", body), scene))


def test_a_pin_is_set_at_once_and_is_an_event_when_it_changes_something(tmp_path: Any) -> None:
    folders = {step: tmp_path / f"step_{step}" for step in (10, 20)}
    for folder in folders.values():
        folder.mkdir()

    def checkpoints(*_: object) -> list[SavedCheckpoint]:
        problems = {10: "", 20: "the save did not finish"}
        return [
            SavedCheckpoint(step, str(folder), 5, problems[step], (folder / PIN).exists())
            for step, folder in folders.items()
        ]

    scene = opened(tmp_path).scene()._replace(program=SimpleNamespace(checkpoints=checkpoints))
    for command, is_pinned in (("pin", True), ("pin", True), ("unpin", False), ("unpin", False)):
        before = (folders[10] / PIN).exists()
        *changes, answer = pin(scene, command, 10)
        assert isinstance(answer, events.RequestAnswered)
        assert answer.outcome == "done"
        assert (folders[10] / PIN).exists() == is_pinned
        assert changes == ([] if before == is_pinned else [events.CheckpointPinned(10, is_pinned, "a@b")])
    for step in (20, 30, 0, True, None, "10"):
        [answer] = pin(scene, "pin", step)
        assert isinstance(answer, events.RequestAnswered)
        assert (answer.outcome, bool(answer.what and answer.why and answer.fix)) == ("refused", True), step
    assert not (folders[20] / PIN).exists()


# --- runs on several machines -----------------------------------------------------------------------


def refusals(world: World) -> list[str]:
    answers = (event for event in world.written if isinstance(event, events.RequestAnswered))
    return [answer.what for answer in answers if answer.outcome == "refused"]


def test_a_run_without_a_machine_stays_paused_until_it_is_returned(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.machines = 3
    world.step()
    world.give("drain", "machine-1")
    world.settle()
    world.end("stopped")
    world.settle()
    assert (world.state.state, world.state.attempt_number) == ("paused", 1)
    assert world.testing == ("id-1", ("machine-1",))
    world.finish_test()
    world.settle()
    assert final_answers(world) == {"id-1": ["accepted", "done"]}
    for command in ("resume", "go_back"):
        world.give(command)
        world.settle()
    assert refusals(world) == 2 * ["the run stays paused, because machine-1 is drained"]
    world.give("return", "machine-1")
    world.settle()
    assert (world.state.state, world.state.left_out) == ("paused", ())
    world.give("resume")
    world.settle()
    assert (world.state.attempt_number, world.state.restarts) == (2, 0)


def test_a_drain_of_a_machine_overtakes_a_resume(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.machines = 2
    world.give("pause")
    world.give("resume")
    world.give("drain", "machine-1")
    world.settle()
    world.end("stopped")
    world.settle()
    assert (world.state.state, world.state.attempt_number) == ("paused", 1)
    assert final_answers(world)["id-2"] == ["accepted", "failed"]


def test_a_run_waits_for_the_test_of_a_machine_that_it_uses(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.machines = 2
    world.give("pause")
    world.settle()
    world.end("stopped")
    world.settle()
    for command in ("test", "resume"):
        world.give(command, "machine-1")
        world.settle()
    assert (world.testing, world.state.attempt_number) == (("id-2", ("machine-1",)), 1)
    world.finish_test()
    world.settle()
    assert world.state.attempt_number == 2


def test_a_machine_that_is_not_there_keeps_a_run_paused(tmp_path: Any) -> None:
    world = opened(tmp_path)
    world.machines = 2
    world.give("pause")
    world.settle()
    world.end("stopped")
    world.settle()
    name = "machine 1 (10.0.0.2)"
    what = f"{name} is not there while the run is paused: it left"
    world.write(events.AlarmRaised(0, *NOT_THERE, name, "alert", "hardware", what, "", "", name, 0))
    world.give("resume")
    assert refusals(world) == [what]
    world.write(events.AlarmCleared(0, *NOT_THERE, name))
    world.give("resume")
    world.settle()
    assert world.state.attempt_number == 2


@pytest.mark.parametrize(
    ("machines", "gpus", "what"),
    [
        (2, ("machine-0",), "machine-0 cannot be taken out"),
        (2, ("machine-1", "GPU-0"), "machine-1 and GPUs are named together"),
        (2, ("machine-2",), "no GPU 'machine-2'"),
        (2, ("machine--1",), "no GPU 'machine--1'"),
        (1, ("machine-1",), "no GPU 'machine-1'"),
        (1, ("machine-0",), "no GPU 'machine-0'"),
    ],
)
@pytest.mark.parametrize("command", ["drain", "test"])
def test_what_is_no_other_machine_is_not_taken_out(
    tmp_path: Any, command: str, machines: int, gpus: tuple[str, ...], what: str
) -> None:
    world = opened(tmp_path)
    world.machines = machines
    world.give(command, *gpus)
    world.settle()
    assert refusals(world) == [what]
    assert (world.state.left_out, world.state.live is not None) == ((), True)
