"""Reports what is wrong in a run of prime-rl that its launcher does not report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prime_train.programs.prime_rl.judge import Limits, Memory, Run
from prime_train.supervise.watches.watch import Alarm

WATCH = "prime_rl"


def list_alarms(run: Run, memory: Memory, now_s: float, limits: Limits, logs: Mapping[str, str]) -> tuple[Alarm, ...]:
    """Everything that is wrong at `now_s`. `logs`: the log of each part, for the messages."""
    if memory.finished or memory.failed is not None or memory.got_signal or memory.ended_s is not None:
        return ()
    missing, unreported = _judge_servers(memory, now_s, limits, logs), _judge_errors(memory, now_s, limits, logs)
    return (*missing, *unreported, *_judge_start(run, memory))


def _judge_servers(memory: Memory, now_s: float, limits: Limits, logs: Mapping[str, str]) -> Iterator[Alarm]:
    for server, since_s in memory.gone:
        if now_s - since_s < limits.gone_s:
            continue
        what = f"{server} has ended, and the launcher continues without it"
        why = "for prime-rl's launcher, exit code 0 is no error: trainer and orchestrator would wait forever"
        fix = "read its log; the run continues from the newest complete checkpoint"
        yield Alarm(WATCH, "service_gone", server, "restart", "unknown", what, why, fix, logs.get(server, ""))


def _judge_errors(memory: Memory, now_s: float, limits: Limits, logs: Mapping[str, str]) -> Iterator[Alarm]:
    """An environment may fail sometimes: this is harmless as long as rollouts arrive.

    A step or rollout shortly after the error proves nothing: it was in flight when the error was raised.
    """
    for server, at_s in memory.env_errors:
        quiet_s = now_s - max(at_s, memory.moved_s)
        if memory.moved_s - at_s > limits.env_error_s or quiet_s < limits.env_error_s:
            continue
        what = f"{server} raised an exception, and no rollout has arrived for {quiet_s:.0f} s"
        why = "prime-rl does not report errors of an environment's worker to the orchestrator, which then waits forever"
        fix = "read the traceback in its log; test the environment alone"
        yield Alarm(WATCH, "env_error", server, "restart", "unknown", what, why, fix, logs.get(server, ""))


def _judge_start(run: Run, memory: Memory) -> Iterator[Alarm]:
    if memory.scratch:
        what = f"it should resume from step {run.resume_step}, but began from scratch: {memory.scratch}"
        why = "prime-rl only warns if it finds no checkpoint, and would overwrite those of the run"
        fix = "check that the checkpoint folders are below output_dir and run.name"
        yield Alarm(WATCH, "started_over", "trainer", "restart", "env", what, why, fix)
