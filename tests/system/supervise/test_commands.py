"""Commands to whole supervisions with real processes: pause, resume, a checkpoint at once, back to a step."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prime_train.checkpoints.layout import newest_complete
from prime_train.core.errors import ExitCode
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointSaved, CommandAccepted, Event, GpuTested, RequestAnswered, SignalSent, read
from prime_train.supervise.processes.ask import ask, create_request_id
from prime_train.supervise.processes.requests import COMMAND_REQUESTED, request_stop
from tests.system.supervise.test_loop import DEADLINE_S, SLOWLY, Supervised, launches, state_of, training
from tests.system.supervise.test_loop import run_dir as run_dir
from tests.system.supervise.test_loop import start as start
from tests.unit.cli.commands import prime_train


def events_of(run_dir: RunDir, kind: type[Event]) -> list[Any]:
    return [record.event for record in read(run_dir.events) if isinstance(record.event, kind)]


def give(run_dir: RunDir, command: str, request_id: str = "", **values: Any) -> RequestAnswered:
    """The first answer of the supervisor."""
    body = {"command": command, "by": "somebody@here", **values}
    return ask(run_dir, state_of(run_dir).attempt_number, COMMAND_REQUESTED, body, request_id or create_request_id())


def last_answer(run_dir: RunDir, request_id: str) -> RequestAnswered:
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        found: list[RequestAnswered] = [
            one for one in events_of(run_dir, RequestAnswered) if one.request_id == request_id
        ]
        if found and found[-1].outcome != "accepted":
            return found[-1]
        time.sleep(0.03)
    raise AssertionError(f"no answer to {request_id} in {DEADLINE_S} s")


@pytest.fixture
def trained(start: Callable[..., Supervised], run_dir: RunDir) -> Iterator[Supervised]:
    """A run that has saved a checkpoint and trains until something ends it."""
    supervised = start("finish", *SLOWLY)
    supervised.until(training)
    run_dir.config.write_text("# the text of the config\n")
    yield supervised
    if supervised.process.poll() is None:
        supervised.process.send_signal(signal.SIGTERM)
        supervised.end()


def is_paused(state: Any) -> bool:
    return bool(state.state == "paused" and not state.commands)


def test_a_paused_run_has_no_trainer_and_goes_on_where_it_paused(trained: Supervised, run_dir: RunDir) -> None:
    paused = prime_train("pause", str(run_dir.path), "--why", "others need the GPUs", cwd=run_dir.path.parent)
    assert paused.returncode == 0, paused.stderr
    state = trained.until(is_paused)
    assert state.live is None
    assert paused.stdout.startswith(f"paused at step {state.step:,} with checkpoint of step {state.newest_complete:,}")
    assert newest_complete(run_dir.checkpoints).step == state.step  # type: ignore[union-attr]
    assert [one.why for one in events_of(run_dir, CommandAccepted)] == ["others need the GPUs"]
    shown = prime_train("status", str(run_dir.path), cwd=run_dir.path.parent)
    assert f"to continue: prime-train resume {run_dir.path.name}" in shown.stdout.replace("\n", " ")

    resumed = prime_train("resume", str(run_dir.path), cwd=run_dir.path.parent)
    assert (resumed.returncode, resumed.stdout) == (0, f"attempt 2 is launched from step {state.step:,}\n")
    again = trained.until(lambda now: now.step > state.step)
    assert (again.state, again.restarts, again.fruitless, again.attempts[0].outcome) == ("running", 0, 0, "stopped")
    assert launches(run_dir)[1].resume_step == state.step


def test_a_stop_while_paused_ends_the_run_as_stopped(trained: Supervised, run_dir: RunDir) -> None:
    give(run_dir, "pause")
    trained.until(is_paused)
    request_stop(run_dir, 1)
    assert trained.end() == ExitCode.RESUMABLE
    state = state_of(run_dir)
    assert (state.state, state.attempt_number, state.halt) == ("stopped", 1, None)


def test_a_pause_asked_twice_and_a_repeated_id_act_once(trained: Supervised, run_dir: RunDir) -> None:
    first = give(run_dir, "pause", "one")
    assert (first.outcome, give(run_dir, "pause", "two").outcome) == ("accepted", "done")
    trained.until(is_paused)
    assert last_answer(run_dir, "one").what.startswith("paused at step")
    assert give(run_dir, "pause", "three").what.startswith("the run is paused already")
    assert give(run_dir, "resume", "four").outcome == "accepted"
    trained.until(lambda state: state.attempt_number == 2 and training(state))
    assert give(run_dir, "pause", "one").outcome == "accepted"  # the first answer again, and no second pause
    assert give(run_dir, "resume", "five").outcome == "refused"
    assert len(events_of(run_dir, CommandAccepted)) == 2


def test_a_resume_before_the_pause_has_ended_launches_at_once(trained: Supervised, run_dir: RunDir) -> None:
    give(run_dir, "pause", "one")
    assert give(run_dir, "resume", "two").outcome in ("accepted", "done")
    trained.until(lambda state: state.attempt_number == 2 and training(state))
    assert last_answer(run_dir, "two").outcome == "done"
    assert state_of(run_dir).restarts == 0


def test_a_supervisor_that_is_killed_while_paused_goes_on_when_the_run_is_started_again(
    start: Callable[..., Supervised], run_dir: RunDir
) -> None:
    supervised = start("finish", *SLOWLY)
    supervised.until(training)
    give(run_dir, "pause")
    step = supervised.until(is_paused).step
    supervised.process.kill()
    supervised.process.wait()
    again = start("finish", *SLOWLY)
    state = again.until(lambda now: now.step > step)
    assert (launches(run_dir)[1].resume_step, state.restarts, state.halt) == (step, 0, None)
    again.process.send_signal(signal.SIGTERM)
    assert again.end() == ExitCode.RESUMABLE


def test_a_checkpoint_at_once_ends_nothing(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    supervised = start("finish", *SLOWLY, "save_every=1000000")
    supervised.until(lambda state: state.step > 3)
    done = prime_train("ckpt", "now", str(run_dir.path), cwd=run_dir.path.parent)
    assert done.returncode == 0, done.stderr
    assert [one.signal for one in events_of(run_dir, SignalSent)] == ["save_requested"]
    (saved,) = events_of(run_dir, CheckpointSaved)
    assert done.stdout == f"the checkpoint of step {saved.step:,} is complete: attempt 1\n"
    state = supervised.until(lambda now: now.step > saved.step)
    assert (state.attempt_number, state.live is not None, state.commands) == (1, True, ())
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.end() == ExitCode.RESUMABLE


def test_a_run_goes_back_to_a_step_and_keeps_the_later_checkpoints(trained: Supervised, run_dir: RunDir) -> None:
    trained.until(lambda state: state.newest_complete >= 30)
    shown = prime_train("resume", str(run_dir.path), "--from", "20", "--dry-run", cwd=run_dir.path.parent)
    assert shown.returncode == 0, shown.stderr
    assert "back to step 20" in shown.stdout
    assert launches(run_dir)[1:] == []
    done = prime_train("resume", str(run_dir.path), "--from", "20", cwd=run_dir.path.parent)
    assert (done.returncode, done.stdout) == (0, "attempt 2 is launched from step 20 on every rank\n"), done.stderr
    assert launches(run_dir)[1].resume_step == 20
    assert "step_30.set_aside" in " ".join(launches(run_dir)[1].rejected)
    assert (run_dir.checkpoints / "step_30.set_aside").is_dir()
    trained.until(lambda state: state.attempt_number == 2 and training(state))
    assert state_of(run_dir).restarts == 0


def test_a_paused_run_goes_back(trained: Supervised, run_dir: RunDir) -> None:
    give(run_dir, "pause")
    trained.until(is_paused)
    assert give(run_dir, "go_back", "back", step=10).outcome == "accepted"
    assert last_answer(run_dir, "back").outcome == "done"
    assert launches(run_dir)[1].resume_step == 10


def test_a_checkpoint_that_breaks_before_the_launch_starts_nothing(trained: Supervised, run_dir: RunDir) -> None:
    give(run_dir, "pause")
    trained.until(is_paused)
    state_file = run_dir.checkpoint(10) / "state.bin"
    state_file.write_bytes(b"x" * state_file.stat().st_size)  # its length is right, so only its hash shows it
    give(run_dir, "go_back", "back", step=10)
    answer = last_answer(run_dir, "back")
    assert answer.outcome == "failed"
    assert "step 10 cannot be resumed from" in answer.what
    state = state_of(run_dir)
    assert (state.state, state.attempt_number) == ("paused", 1)
    assert give(run_dir, "resume", "on").outcome == "accepted"
    trained.until(lambda now: now.attempt_number == 2)


def test_the_stand_in_of_a_gpu_is_tested_beside_a_training(trained: Supervised, run_dir: RunDir) -> None:
    """Real products, copies and an all-reduce of two processes, on the CPU."""
    done = prime_train("gpu", "test", str(run_dir.path), "cpu", cwd=run_dir.path.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cpu passed: 20 products of 1024 x 1024 right, copied at ")
    assert done.stdout.endswith("all-reduce of a pair right\n")
    (tested,) = events_of(run_dir, GpuTested)
    assert (tested.gpu, tested.passed) == ("cpu", True)
    assert trained.until(training).attempt_number == 1
    refused = give(run_dir, "drain", gpus=["0"])
    assert (refused.outcome, refused.what) == ("refused", "no GPU '0'")


def test_a_drained_gpu_is_left_out_tested_and_given_back(
    start: Callable[..., Supervised], run_dir: RunDir, tmp_path: Path
) -> None:
    supervised = start("finish", *SLOWLY, "gpus=2")
    supervised.until(training)
    assert give(run_dir, "test", gpus=["1"]).what == "attempt 1 may use GPU-1"
    drained = prime_train("gpu", "drain", str(run_dir.path), "1", cwd=tmp_path)
    # There is no such GPU on this machine, or not under this name: the test finds that out.
    assert drained.returncode == ExitCode.OUT_OF_REACH
    assert "GPU-1 FAILED" in drained.stderr
    state = supervised.until(lambda now: now.attempt_number == 2 and training(now))
    assert (state.left_out, state.restarts, state.attempts[0].outcome) == (("GPU-1",), 0, "stopped")
    assert visible_in(run_dir, 2) == "GPU-0"
    # The one process of the run needs a GPU.
    refused = give(run_dir, "drain", gpus=["GPU-0"])
    assert (refused.outcome, refused.what) == ("refused", "0 GPUs would remain, and the run needs 1")
    assert give(run_dir, "drain", gpus=["GPU-1"]).what == "these GPUs are left out already"
    back = prime_train("gpu", "return", str(run_dir.path), "GPU-1", cwd=tmp_path)
    assert (back.returncode, back.stdout) == (0, "used again from the next attempt on: GPU-1\n")
    for command in ("pause", "resume"):
        assert give(run_dir, command).outcome == "accepted"
        supervised.until(lambda now: not now.commands)
    state = supervised.until(lambda now: now.attempt_number == 3 and training(now))
    assert (state.left_out, visible_in(run_dir, 3)) == ((), None)
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.end() == ExitCode.RESUMABLE


def visible_in(run_dir: RunDir, attempt: int) -> str | None:
    """The CUDA_VISIBLE_DEVICES with which the trainer was started; None if it was not set."""
    variables = json.loads(run_dir.launch(attempt, "trainer").read_text())["variables"]
    return next((one["value"] for one in variables if one["name"] == "CUDA_VISIBLE_DEVICES"), None)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"command": "explode"}, "there is no command 'explode'"),
        ({"command": ["pause"]}, "there is no command ['pause']"),
        ({"command": "pause", "by": "x\n"}, "by is not a printable text of at most 200 characters"),
        ({"command": "pause", "why": "x" * 201}, "why is not a printable text of at most 200 characters"),
        ({"command": "resume"}, "the run is not paused: its state is running"),
        ({"command": "go_back"}, "None is no step"),
        ({"command": "go_back", "step": True}, "True is no step"),
        ({"command": "drain", "gpus": ["7"]}, "no GPU '7'"),
        ({"command": "drain", "gpus": ["cpu"]}, "a CPU cannot be drained"),
        ({"command": "drain", "gpus": []}, "[] is no list of GPUs"),
        ({"command": "test", "gpus": "0"}, "'0' is no list of GPUs"),
        ({"command": "return", "gpus": [0]}, "[0] is no list of GPUs"),
        ({"command": "go_back", "step": 7}, "step 7 cannot be resumed from: there is no such checkpoint"),
    ],
)
def test_a_command_that_cannot_be_done_is_refused(
    trained: Supervised, run_dir: RunDir, body: dict[str, Any], what: str
) -> None:
    answer = ask(run_dir, 1, COMMAND_REQUESTED, {"by": "somebody@here", **body}, create_request_id())
    assert (answer.outcome, answer.what) == ("refused", what)
    assert answer.why
    assert answer.fix
    assert events_of(run_dir, CommandAccepted) == []
    assert trained.process.poll() is None


def test_a_command_to_a_run_that_has_ended_names_the_way(start: Callable[..., Supervised], run_dir: RunDir) -> None:
    assert start("finish").end() == 0
    for words in (["pause"], ["ckpt", "now"], ["resume"]):
        done = prime_train(*words, str(run_dir.path), cwd=run_dir.path.parent)
        assert done.returncode == ExitCode.USAGE
        assert "no supervisor runs it" in done.stderr
    unknown = prime_train("resume", str(run_dir.path), "--from", "15", cwd=run_dir.path.parent)
    assert unknown.returncode == ExitCode.USAGE
    assert "complete checkpoints: 10, 20, 30, 40" in unknown.stderr
