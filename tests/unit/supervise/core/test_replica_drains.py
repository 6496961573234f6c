"""A GPU of a run with replicas is drained while the others train on: written histories of alarms and tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prime_train import events, spec
from prime_train.core.drained_gpus import read_drained, write_drained
from prime_train.core.rundir import RunDir, make_folder
from prime_train.supervise.answers.command_scene import CommandScene
from prime_train.supervise.answers.commands import answer_command
from prime_train.supervise.core.fold_drains import DRAIN_EVERY_S, find_gpu_request
from prime_train.supervise.core.gpu_stages import find_stage
from prime_train.supervise.launch.environment import assign_gpus
from prime_train.supervise.launch.program import Role
from prime_train.supervise.processes.requests import COMMAND_REQUESTED, Request
from prime_train.trainer.replicas.drained import count_replicas
from tests.unit.supervise.core.test_commands import GPUS, World, final_answers

LAYOUT = spec.Parallel(processes=3, replicas=3, min_replicas=2)
ROLE = Role("trainer", 3, least_gpus=2)


@dataclass
class Replicas(World):
    """A run of three replicas, of which two are needed."""

    shards = 1

    def scene(self) -> CommandScene:
        scene = super().scene()
        program: Any = SimpleNamespace(roles=lambda *_: (ROLE,))  # it needs to know nothing of checkpoints
        return scene._replace(run=replace(scene.run, parallel=replace(LAYOUT, dp_shard=self.shards)), program=program)

    def ask(self, command: str, gpu: str) -> list[str]:
        """The outcomes of the answers until now."""
        self.asked += 1
        request = Request(COMMAND_REQUESTED, f"by-ada-{self.asked}", {"command": command, "gpus": [gpu], "by": "ada"})
        return self.give_request(request)

    def give_request(self, request: Request) -> list[str]:
        for event in list(answer_command(request, self.scene())):
            self.write(event)
        self.settle()
        return final_answers(self)[request.id]

    def alarm(self, answer: str, gpu: str) -> None:
        about = (1, "straggler", "slow_rank", f"rank of {gpu}", answer, "hardware", "it is slow", "w", "f", gpu, 5)
        self.write(events.AlarmRaised(*about))

    def follow_policy(self) -> str:
        """The id of the request that the policy makes now; "" for none."""
        request = find_gpu_request(self.state, self.now_s)
        if request is not None:
            self.give_request(request)
        return request.id if request is not None else ""

    def leave(self, number: int) -> None:
        """The launcher has ended the replica on a drained GPU."""
        gpu = GPUS[number][1]
        assert gpu in self.drained
        self.write(events.ReplicaLost(self.state.attempt_number, number, 3, f"{gpu} is drained", 0.0, (gpu,)))
        self.settle()

    def finish(self, *, passed: bool) -> None:
        (request_id, gpus), self.testing = self.testing, ("", ())
        for gpu in gpus:
            self.write(events.GpuTested(request_id, gpu, passed, "compared", 1.0))
        self.settle()

    @property
    def drained(self) -> frozenset[str]:
        return read_drained(RunDir(self.tmp), self.state.attempt_number)


@pytest.fixture
def world(tmp_path: Path) -> Replicas:
    found = Replicas(tmp_path)
    for attempt in (1, 2):
        make_folder(RunDir(tmp_path).attempt(attempt))
    found.write(events.RunOpened("r", 1, 10**6, "0.1"))
    found.settle()
    found.step()
    found.used = ()  # a GPU that a replica has left is used no more, although the attempt goes on
    return found


@pytest.mark.parametrize("shards", [1, 2])
def test_the_attempt_goes_on_and_the_gpu_is_tested_once_its_replica_has_left(shards: int, world: Replicas) -> None:
    world.shards = shards
    assert world.ask("drain", "GPU-1") == ["accepted"]
    assert (sorted(world.drained), world.state.left_out) == (["GPU-1"], ("GPU-1",))
    assert (world.testing, find_stage(world.state, "GPU-1")) == (("", ()), "draining")
    world.leave(1)
    assert (world.testing, find_stage(world.state, "GPU-1")) == (("by-ada-1", ("GPU-1",)), "testing")
    world.finish(passed=False)
    assert final_answers(world) == {"by-ada-1": ["accepted", "failed"]}
    assert find_stage(world.state, "GPU-1") == "condemned"
    assert (world.state.attempt_number, world.state.halt, world.state.stop_requested_s) == (1, None, None)


def test_no_drain_goes_below_the_least_number_of_replicas(world: Replicas) -> None:
    world.ask("drain", "GPU-1")
    world.leave(1)
    world.finish(passed=False)
    assert world.ask("drain", "GPU-2") == ["refused"]
    assert (sorted(world.drained), world.state.left_out) == (["GPU-1"], ("GPU-1",))
    answers = [event for event in world.written if isinstance(event, events.RequestAnswered)]
    assert answers[-1].what == "1 GPUs would remain, and the run needs 2"


def test_a_returned_gpu_is_used_and_is_no_longer_free(world: Replicas) -> None:
    world.ask("drain", "GPU-1")
    world.leave(1)
    world.finish(passed=True)
    assert world.ask("return", "GPU-1") == ["accepted", "done"]
    assert (world.drained, world.state.left_out) == (frozenset(), ())
    assert world.state.live is not None
    assert world.state.live.freed_gpus == ()
    assert world.ask("test", "GPU-1") == ["refused"]


def test_a_slow_gpu_leaves_for_its_test_comes_back_and_is_drained_when_it_costs_more(world: Replicas) -> None:
    world.alarm("test", "GPU-2")
    assert world.follow_policy() == "test-straggler-GPU-2-1"
    began_s = world.now_s
    assert world.follow_policy() == ""
    world.leave(2)
    world.finish(passed=True)
    assert world.follow_policy() == "return-straggler-GPU-2-1"
    assert (world.drained, find_stage(world.state, "GPU-2")) == (frozenset(), "suspect")  # it is still slow
    world.alarm("drain", "GPU-2")
    assert world.follow_policy() == ""  # another drain comes not so soon
    world.now_s = began_s + DRAIN_EVERY_S
    world.step()
    assert world.follow_policy() == "drain-straggler-GPU-2-1"
    world.leave(2)
    world.finish(passed=True)
    assert world.follow_policy() == ""  # it computes rightly, and is too slow
    assert (sorted(world.drained), world.state.attempt_number) == (["GPU-2"], 1)


def test_a_gpu_that_fails_its_test_does_not_come_back(world: Replicas) -> None:
    world.alarm("test", "GPU-2")
    world.follow_policy()
    world.leave(2)
    world.finish(passed=False)
    world.now_s += 2 * DRAIN_EVERY_S
    world.step()
    assert world.follow_policy() == ""
    assert find_stage(world.state, "GPU-2") == "condemned"


def test_the_next_attempt_begins_without_a_drained_gpu_and_tests_what_was_not(world: Replicas) -> None:
    world.ask("drain", "GPU-1")
    world.end("crash")
    world.settle()
    assert world.state.attempt_number == 2
    assert (world.used, world.testing) == (("GPU-0", "GPU-2"), ("by-ada-1", ("GPU-1",)))


def test_a_file_that_names_no_gpus_drains_none(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    make_folder(run_dir.attempt(1))
    for content in ("{", "{}", "3", "[3]"):
        run_dir.drained_gpus(1).write_text(content)
        assert read_drained(run_dir, 1) == frozenset()
    write_drained(run_dir, 1, {"GPU-2", "GPU-1"})
    assert read_drained(run_dir, 1) == {"GPU-1", "GPU-2"}


def test_a_later_attempt_sees_the_gpus_that_are_left_and_starts_as_many_replicas() -> None:
    uuids = [uuid for _, uuid in GPUS]
    variable = assign_gpus("trainer", (ROLE,), uuids, ["GPU-1"])
    assert variable is not None
    assert variable.value == "GPU-0,GPU-2"
    assert assign_gpus("trainer", (ROLE,), uuids, ["GPU-1", "GPU-2"]) is None  # too few would remain
    assert assign_gpus("trainer", (Role("trainer", 3),), uuids, ["GPU-1"]) is None
    run: Any = SimpleNamespace(parallel=LAYOUT)
    seen = ("GPU-0,GPU-2", "GPU-0,GPU-1,GPU-2,GPU-3", "GPU-0", None, "", "0,1")
    assert [count_replicas(run, one) for one in seen] == [2, 3, 2, 3, 3, 3]
