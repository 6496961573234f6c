from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.diagnose import cause as root_cause
from prime_train.diagnose.log_scanner import scan
from prime_train.events import AlarmRaised, HangFound, TrainerFailed
from prime_train.supervise.core.state import Live, PendingKill, Sent, State, TrainerExit
from prime_train.supervise.evidence.diagnose import EndCause, EndEvidence, judge

STATE = State(step=40, max_steps=300)
LIVE = Live(1, last_sign_s=0.0)
LOG = Path("/run/attempts/001/trainer.log")

IMPORT_ERROR = """\
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/src/trainer/__main__.py", line 12, in <module>
    import torch
ModuleNotFoundError: No module named 'torch'
"""
TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/src/trainer/loops/pretrain.py", line 88, in step
[rank1]:     raise ValueError("odd")
[rank1]: ValueError: odd
Traceback (most recent call last):
  File "/torch/distributed/run.py", line 1, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_09:00:00
  host      : box
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 4243)
"""
TORCHRUN_KILLED = """\
Failures:
[0]:
  time      : 2026-11-21_09:00:01
  rank      : 0 (local_rank: 0)
  exitcode  : -6 (pid: 4242)
Root Cause (first observed failure):
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4243)
  traceback : Signal 9 (SIGKILL) received by PID 4243
"""
ABORTED = """\
step 40
Fatal Python error: Aborted

Thread 0x00007f01 (most recent call first):
  File "/lib/threading.py", line 331 in wait

Current thread 0x00007f02 (most recent call first):
  File "/src/trainer/data/loader.py", line 77 in take
  File "/src/trainer/loops/pretrain.py", line 12 in main
"""


def judged(returncode: int | None, log_tail: str = "", live: Live = LIVE, kills: int = 0) -> EndCause:
    return judge(STATE, live, EndEvidence(returncode, LOG, log_tail, kills))


def test_the_last_word_counts_more_than_the_exit_code() -> None:
    assert judged(1, live=replace(LIVE, trainer_exit=TrainerExit("finished", 1.0, 300))) == EndCause("finished")
    assert judged(-9, live=replace(LIVE, trainer_exit=TrainerExit("stopped", 1.0, 40))) == EndCause("stopped")


def test_a_rank_that_torchrun_stops_after_a_killed_one_is_not_the_cause() -> None:
    told_to_stop = replace(LIVE, trainer_exit=TrainerExit("stopped", 1.0, 0))
    found = judged(1, TORCHRUN_KILLED, told_to_stop)
    assert (found.outcome, found.cause_class) == ("failed", "signal")
    assert found.what.startswith("rank 1 was killed")
    requested = replace(STATE, stop_requested_s=1.0)
    assert judge(requested, told_to_stop, EndEvidence(1, LOG, TORCHRUN_KILLED, 0)) == EndCause("stopped")


def test_finished_before_the_last_step_is_not_finished() -> None:
    found = judged(0, live=replace(LIVE, trainer_exit=TrainerExit("finished", 1.0, 40)))
    assert (found.outcome, found.what) == ("failed", "exited with 0 at step 40 of 300")


def test_the_trainers_own_account() -> None:
    account = TrainerFailed(1, 0, "disk", "no space", "the disk is full", "free some", "save.py:1")
    live = replace(LIVE, failure=account, trainer_exit=TrainerExit("failed", 1.0, 40))
    assert judged(5, IMPORT_ERROR, live) == EndCause(
        "failed", "disk", "no space", "the disk is full", "free some", "save.py:1"
    )
    unheard = replace(live, failure=replace(account, cause_class="weather"))
    assert judged(5, "", unheard).cause_class == "unknown"


@pytest.mark.parametrize(
    ("returncode", "cause_class", "what"),
    [
        (0, "unknown", "exited with 0 at step 40 of 300"),
        (1, "unknown", "exited with 1 at step 40 of 300"),
        (2, "config", "exited with 2"),
        (5, "config", "exited with 5"),
        (126, "env", "exited with 126"),
        (127, "env", "exited with 127"),
        (-9, "signal", "killed by signal 9 (SIGKILL)"),
        (137, "signal", "killed by signal 9 (SIGKILL)"),
        (-11, "signal", "killed by signal 11 (SIGSEGV)"),
        (-34, "signal", "killed by signal 34"),
        (None, "signal", "together with its supervisor"),
    ],
)
def test_exit_codes(returncode: int | None, cause_class: str, what: str) -> None:
    found = judged(returncode)
    assert (found.outcome, found.cause_class) == ("failed", cause_class)
    assert what in found.what
    assert found.why or returncode == -34
    assert found.where == str(LOG)


def test_the_out_of_memory_killer_is_named_only_when_it_was_at_work() -> None:
    assert judged(-9, kills=1).cause_class == "oom"
    assert "something outside" in judged(-9, kills=0).why
    assert judged(-11, kills=1).cause_class == "signal"


@pytest.mark.parametrize(
    ("log", "cause_class", "what", "where"),
    [
        (IMPORT_ERROR, "env", "ModuleNotFoundError: No module named 'torch'", "/src/trainer/__main__.py:12"),
        (TORCHRUN, "unknown", "ValueError: odd", "/src/trainer/loops/pretrain.py:88"),
        (
            "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device\n",
            "disk",
            "OSError",
            str(LOG),
        ),
        ("Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA\n", "oom", "OutOfMemoryError", str(LOG)),
        ("Traceback (most recent call last):\nX: " + "y" * 10_000, "unknown", "X: yyy", str(LOG)),
        ("Traceback (most recent call last):\n  File", "unknown", "exited with 1", str(LOG)),
    ],
)
def test_the_first_traceback_of_the_log_speaks_where_the_trainer_did_not(
    log: str, cause_class: str, what: str, where: str
) -> None:
    found = judged(1, log)
    assert (found.cause_class, found.where) == (cause_class, where)
    assert what in found.what
    assert len(found.what) <= 300


@pytest.mark.parametrize(
    ("what", "cause_class", "identifier", "retry"),
    [
        ("DistBackendError: NCCL error: ncclUnhandledCudaError, unhandled cuda error", "hardware", "NCCL004", "yes"),
        ("RuntimeError: Rank 3 failed to pass monitoredBarrier in 600000 ms", "network", "TORCH021", "yes"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 1024x4096)", "bug", "TORCH011", "no"),
        ("RuntimeError: pair.cc:534] Connection closed by peer [127.0.0.1]:43210", "unknown", "", ""),  # an echo
        ("ValueError: odd", "unknown", "", ""),
    ],
)
def test_what_the_trainer_does_not_know_a_signature_may(
    what: str, cause_class: str, identifier: str, retry: str
) -> None:
    account = TrainerFailed(1, 0, "unknown", what, "", "read it", "step.py:3")
    found = judged(1, live=replace(LIVE, failure=account))
    assert (found.cause_class, found.id, found.retry, found.what) == (cause_class, identifier, retry, what)
    assert found.where == "step.py:3"


def _heard(log: str, name: str = "inference.log") -> root_cause.Cause:
    found = root_cause.judge([scan([log.encode()], name)]).cause
    assert found is not None
    return found


ENGINE_OOM = "step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def test_another_log_gives_why_the_trainer_lost_its_peer() -> None:
    account = TrainerFailed(1, 0, "unknown", "ConnectionError: inference is gone", "", "", "x.py:1")
    evidence = EndEvidence(1, LOG, "", 0, _heard(ENGINE_OOM))
    found = judge(STATE, replace(LIVE, failure=account), evidence)
    assert (found.id, found.cause_class, found.where) == ("CUDA001", "oom", "inference.log:2")
    known = replace(account, cause_class="disk", what="OSError: [Errno 28] No space left on device")
    found = judge(STATE, replace(LIVE, failure=known), evidence)
    assert (found.id, found.cause_class) == ("OS001", "disk")


@pytest.mark.parametrize(
    ("watch", "name", "told"),
    [("engine", "engine_dead", "CUDA001"), ("hang", "silent", "CUDA001"), ("gpu", "gpu_lost", "gpu_lost")],
)
def test_a_log_explains_silence_and_not_a_lost_gpu(watch: str, name: str, told: str) -> None:
    alarm = AlarmRaised(1, watch, name, "inference", "restart", "hardware", "it is silent", "", "", "", 40)
    live = replace(LIVE, pending_kill=PendingKill(alarm, 1.0))
    assert judge(STATE, live, EndEvidence(-9, LOG, "", 0, _heard(ENGINE_OOM))).id == told
    bare = judge(STATE, live, EndEvidence(-9, LOG, "", 0))
    assert (bare.id, bare.what, bare.where) == (name, "it is silent", "inference")


@pytest.mark.parametrize("watch", ["engine", "hang"])
def test_an_engine_that_reports_its_own_end_explains_the_silence(watch: str) -> None:
    """Its server may stay, and the trainer waits for an answer."""
    log = "(APIServer pid=7) ERROR 11-21 20:08:19 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: "
    log += "EngineCore encountered an issue. See stack trace (above) for the root cause.\nINFO:     Shutting down\n"
    alarm = AlarmRaised(1, watch, "silent", "inference", "restart", "hang", "it is silent", "", "", "", 40)
    found = judge(STATE, replace(LIVE, pending_kill=PendingKill(alarm, 1.0)), EndEvidence(-9, LOG, "", 0, _heard(log)))
    assert (found.id, found.retry) == ("VLLM007", "yes")
    assert found.what.endswith("; then it is silent")


def test_the_process_that_ended_is_named() -> None:
    found = judge(STATE, LIVE, EndEvidence(0, LOG, "", 0, role="inference"))
    assert (found.cause_class, found.what) == ("unknown", "inference exited with 0 at step 40 of 300")
    assert judge(STATE, LIVE, EndEvidence(-9, LOG, "", 0, role="inference")).what.startswith(
        "inference killed by signal 9"
    )


def test_a_server_whose_engine_died_ends_with_0_and_its_log_gives_why() -> None:
    """vLLM 0.32: the API server shuts down in good order when its engine core is gone."""
    log = "(APIServer pid=7) ERROR 11-21 20:08:19 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: "
    log += "EngineCore encountered an issue. See stack trace (above) for the root cause.\nINFO:     Shutting down\n"
    found = judge(STATE, LIVE, EndEvidence(0, LOG, log, 0, role="inference"))
    assert (found.id, found.retry) == ("VLLM007", "yes")
    assert judge(STATE, LIVE, EndEvidence(0, LOG, log, 0)).id == ""  # a trainer only lost its peer by it


def test_a_killed_server_is_the_cause_and_not_the_trainer_that_lost_it() -> None:
    lost = TrainerFailed(1, 0, "unknown", "EngineError: connection refused", "no rollouts", "", "")
    ended_first = EndEvidence(-9, Path("inference.log"), "", 0, role="inference")
    assert judge(STATE, replace(LIVE, failure=lost), ended_first).what == "inference killed by signal 9 (SIGKILL)"
    trainer_first = replace(ended_first, returncode=1, role="trainer")
    assert judge(STATE, replace(LIVE, failure=lost), trainer_first).what == lost.what
    other = replace(lost, what="ValueError: no", cause_class="config")
    assert judge(STATE, replace(LIVE, failure=other), ended_first).what == other.what


def test_an_engine_that_reports_its_own_end_to_the_trainer_is_named() -> None:
    """The API server of vLLM answers for seconds after its engine core is gone, and the trainer may end first."""
    what = 'EngineError: http://127.0.0.1:1/v1/completions answers 500: {"error":{"message":"EngineCore encountered an '
    lost = TrainerFailed(1, 0, "unknown", what + 'issue."}}', "no rollouts", "", "")
    found = judge(STATE, replace(LIVE, failure=lost), EndEvidence(1, LOG, "", 0))
    assert (found.id, found.retry, found.what) == ("VLLM007", "yes", lost.what)
    other = replace(lost, what=lost.what.removeprefix("EngineError: "))
    assert judge(STATE, replace(LIVE, failure=other), EndEvidence(1, LOG, "", 0)).id == ""


def test_a_kill_from_outside_is_no_echo_of_an_older_error() -> None:
    refused = _heard("huggingface_hub.errors.GatedRepoError: 401 Client Error.\n")
    assert judge(STATE, LIVE, EndEvidence(-9, LOG, "", 0, refused)).cause_class == "signal"
    assert judge(STATE, LIVE, EndEvidence(-6, LOG, "", 0, refused)).cause_class == "auth"
    assert (
        judge(STATE, LIVE, EndEvidence(-9, LOG, "", 0, _heard("slurmstepd: error: task 0: Out Of Memory\n"))).id
        == "OS016"
    )


def test_a_killed_rank_is_the_root_and_not_the_rank_that_lost_its_peer() -> None:
    echo = TrainerFailed(1, 0, "bug", "connection closed by peer", "", "", "")
    found = judged(1, TORCHRUN_KILLED, replace(LIVE, failure=echo))
    assert (found.cause_class, found.what) == ("signal", "rank 1 was killed by signal 9 (SIGKILL)")


def test_a_killed_agent_is_the_root_and_not_the_rank_that_lost_its_peer() -> None:
    what = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer."
    lost = replace(LIVE, failure=TrainerFailed(1, 0, "unknown", what, "", "", ""))
    found = judged(-9, "", lost)
    assert (found.cause_class, found.what) == ("signal", "killed by signal 9 (SIGKILL)")
    assert judged(1, "", lost).what == what
    assert judged(-9, "", replace(lost, sent=(Sent("SIGKILL", 1.0),))).what == what  # it did not end by itself


def test_a_hang_is_placed_by_the_stack_it_left() -> None:
    live = replace(
        LIVE, pending_kill=PendingKill(HangFound(1, 300.4, 300.0, "train"), 0.0), sent=(Sent("SIGABRT", 1.0),)
    )
    found = judged(-6, ABORTED, live)
    assert (found.cause_class, found.where) == ("hang", "/src/trainer/data/loader.py:77 in take")
    assert found.what == "no sign of life for 300 s in phase train; the limit is 300 s"
    assert judged(-9, "", live).where == str(LOG)
    assert "heartbeat" in found.fix


def test_a_hang_of_what_a_signal_holds_is_not_answered_by_a_higher_limit() -> None:
    hang = HangFound(1, 300.4, 300.0, "train", "stopped by a signal, as SIGSTOP does: python (7)")
    found = judged(-9, "", replace(LIVE, pending_kill=PendingKill(hang, 0.0)))
    assert "kill -CONT" in found.fix
    assert "heartbeat" not in found.fix


def test_what_had_to_be_ended_after_its_grace_is_stopped() -> None:
    found = judged(-9, live=replace(LIVE, sent=(Sent("stop_requested", 1.0), Sent("SIGTERM", 2.0))))
    assert found.outcome == "stopped"
    assert "stop_grace_s" in found.fix


def test_a_program_without_room_for_its_reason_is_explained_by_the_disk() -> None:
    found = judge(STATE, LIVE, EndEvidence(1, LOG, "", 0, disk_full=True))
    assert (found.cause_class, "the run's own disk is full" in found.what) == ("disk", True)
    assert judge(STATE, LIVE, EndEvidence(1, LOG, "ValueError: x\n", 0, disk_full=False)).cause_class != "disk"


def test_a_machine_that_never_came_is_not_waited_for_again() -> None:
    missing = TrainerFailed(3, 8, "machine_missing", "machine 1 did not come", "why", "fix", "machine 1")
    found = judge(STATE, replace(LIVE, failure=missing), EndEvidence(4, LOG, "", 0, role="machines"))
    assert (found.outcome, found.cause_class, found.id, found.retry) == ("failed", "hardware", "machine_missing", "no")
    assert (found.what, found.where) == ("machine 1 did not come", "machine 1")


def test_a_signature_in_a_log_does_not_replace_a_lost_machine() -> None:
    lost = TrainerFailed(3, 8, "hardware", "machine 1 was lost", "why", "fix", "machine 1")
    assert judge(STATE, replace(LIVE, failure=lost), EndEvidence(1, LOG, "", 0, role="machines")).what == lost.what
