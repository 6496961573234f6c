"""No closing words forgive a failure, whoever writes them; a finished training stays finished."""

from __future__ import annotations

import codecs

import pytest

from prime_train.diagnose.cause import Diagnosis, judge
from prime_train.diagnose.log_scanner import scan
from tests.unit.diagnose.made_logs.made_log import MadeLog, made_logs, right_lines

# What batch scripts, launchers, bars, watchdogs and services write after a training that died as well.
CLOSING = """
real\t0m56.8s
user\t0m11.2s
done
Done.
All done!
Job finished at Sat Nov 28 04:00:00 UTC 2026
=== Job 4242 finished on node7 ===
=== running the epilogue ===
Job step completed
The run script was completed
Process finished successfully
Script ended at 04:00:05
Cleanup completed successfully.
[2026-11-28 04:00:02,753] [INFO] [launch.py:351:main] Process 105 exits successfully.
(raylet) [2026-11-28 04:00:03,120 I 77 77] worker exited normally, exit code 0
[rank0]:[I1128 04:00:03.000 ProcessGroupNCCL.cpp:1250] last enqueued NCCL work: 18, last completed NCCL work: 18.
[watchdog] heartbeat ok, completed 18 checks
INFO: cleaning up the scratch folder
2026-11-28 04:00:04,001 - launcher - INFO - finished: uploading the logs
2026-11-28 04:00:04,101 - launcher - INFO - upload complete
INFO:     Application shutdown complete.
INFO:     Finished server process [7]
slurm epilog: removing /tmp/job_4242
epilog finished with exit code 0
Uploading: 100%|##########| 4/4 [00:01<00:00,  3.2it/s]
100%|##########| 10/10 [00:00<00:00, 91.2it/s]
wandb: Synced 5 W&B file(s), 0 media file(s), 0 artifact file(s) and 0 other file(s)
Container stopped.
+ exit 0
logout
"""
FAILING = [log for log in made_logs() if not log.is_healthy and not log.is_silent]
HEALTHY = [log for log in made_logs() if log.is_healthy]
HEADER = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\n    step()\n'
OOM = f"{HEADER}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def _judge(log: MadeLog, closing: str) -> Diagnosis:
    data = log.path.read_bytes()
    encoding = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(data[:2], "utf-8")
    return judge([scan([data, f"\n{closing}".encode(encoding)], log.path.name, 1.79e9)])


def test_there_are_thirty_closing_lines() -> None:
    assert len(CLOSING.strip().splitlines()) == 30


@pytest.mark.parametrize("log", FAILING, ids=lambda log: log.name)
def test_closing_lines_hide_no_failure(log: MadeLog) -> None:
    before, after = _judge(log, ""), _judge(log, CLOSING)
    assert not after.is_healthy
    right = right_lines(log, log.text())
    # A warning that was the only sign may be replaced by nothing, but not by a good end.
    if before.cause is not None and before.cause.line in right and after.cause is not None:
        assert after.cause.line in right
        assert after.cause.cause_class == before.cause.cause_class


@pytest.mark.parametrize("log", HEALTHY, ids=lambda log: log.name)
def test_closing_lines_are_no_failure(log: MadeLog) -> None:
    if _judge(log, "").cause is None:
        assert _judge(log, CLOSING).cause is None


@pytest.mark.parametrize("closing", CLOSING.strip().splitlines())
def test_no_single_line_forgives_a_traceback(closing: str) -> None:
    found = judge([scan([f"step 1 | loss: 2.3 | 1.2 s\n{OOM}{closing}\n".encode()], "a.log", 1.79e9)])
    assert found.cause is not None
    assert (found.cause.id, found.cause.line) == ("CUDA001", 5)


@pytest.mark.parametrize(
    "later",
    [
        "step 2 | loss: 2.3 | 1.2 s\nstep 3 | loss: 2.3 | 1.2 s\n",
        "[launcher] job 12 exited with code 0\n",
        "{'train_runtime': 12.3, 'epoch': 3.0}\n",
    ],
)
def test_later_steps_and_the_exit_code_of_the_launcher_do(later: str) -> None:
    assert judge([scan([f"{OOM}{later}".encode()], "a.log", 1.79e9)]).cause is None


def test_a_step_that_is_written_twice_does_not() -> None:
    later = "train: 50%|##  | 820/1628 [08:51<08:30, 1.58it/s]\n" * 2
    assert judge([scan([f"{OOM}{later}".encode()], "a.log", 1.79e9)]).cause is not None


def test_the_report_that_a_child_failed_wins_over_a_good_word() -> None:
    log = f"{OOM}torchrun: train.py failed (exitcode: 1) local_rank: 0 (pid: 7)\nDone.\n"
    found = judge([scan([log.encode()], "a.log", 1.79e9)])
    assert found.cause is not None
    assert found.cause.id == "CUDA001"


def test_a_silent_death_in_the_middle_is_not_closed_by_a_script() -> None:
    steps = "".join(f"iteration {step}/ 900 | loss: 2.3\n" for step in range(1, 15))
    found = judge([scan([f"{steps}{CLOSING}".encode()], "a.log", 1.79e9)])
    assert (found.cause, found.is_healthy) == (None, False)
