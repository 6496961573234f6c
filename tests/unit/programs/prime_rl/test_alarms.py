from __future__ import annotations

from dataclasses import replace

from prime_train.programs.prime_rl.judge import KnownPrimeRlRun, PrimeRlHistory, PrimeRlSample, take
from prime_train.programs.prime_rl.lines import (
    BatchReady,
    Ended,
    FromScratch,
    GotSignal,
    Message,
    PartFailed,
    Stepped,
    Traceback,
)
from prime_train.programs.prime_rl.observer import list_alarms
from tests.unit.programs.prime_rl.samples import LIMITS, RUN, heard, story


def names_at(memory: PrimeRlHistory, now_s: float, run: KnownPrimeRlRun = RUN) -> list[tuple[str, str]]:
    return [(alarm.name, alarm.subject) for alarm in list_alarms(run, memory, now_s, LIMITS, {})]


def test_a_server_that_is_gone_while_the_launcher_states_nothing() -> None:
    there = PrimeRlSample(1.0, servers=("env server words", "inference"))
    memory, _ = story(there, PrimeRlSample(2.0, servers=("env server words",)))
    assert names_at(memory, 2.5) == []
    assert names_at(memory, 4.0) == [("service_gone", "inference")]
    memory, _ = story(there, PrimeRlSample(2.0, servers=()), PrimeRlSample(3.0, servers=("inference",)))
    assert names_at(memory, 9.0) == [("service_gone", "env server words")]


def test_a_server_that_was_too_short_lived_to_be_seen_is_missed_too() -> None:
    memory, _ = story(PrimeRlSample(1.0, servers=()), PrimeRlSample(2.0, servers=(), expected=("inference",)))
    assert names_at(memory, 4.0) == [("service_gone", "inference")]
    memory, _ = story(PrimeRlSample(2.0, servers=("inference",), expected=("inference",)))
    assert names_at(memory, 4.0) == []


def test_servers_may_go_when_the_run_ends_or_the_launcher_ends_it() -> None:
    there, gone = PrimeRlSample(1.0, servers=("inference",)), PrimeRlSample(3.0, servers=())
    for said in (Ended("trainer"), PartFailed("trainer", 1), GotSignal()):
        memory, _ = story(there, heard(2.0, ("launcher", said)), gone)
        assert names_at(memory, 60.0) == []
    memory, _ = story(there, PrimeRlSample(3.0))  # the launcher itself is gone: nothing was looked at
    assert names_at(memory, 60.0) == []


def test_an_error_of_an_environment_counts_where_no_rollout_follows() -> None:
    raised = heard(10.0, ("env server words", Traceback()))
    memory, _ = story(heard(1.0, ("orchestrator", BatchReady(1, 8))), raised)
    assert names_at(memory, 100.0) == []
    assert names_at(memory, 131.0) == [("env_error", "env server words")]
    memory, _ = story(raised, heard(140.0, ("orchestrator", BatchReady(2, 8))))
    assert names_at(memory, 1000.0) == []
    memory, _ = story(heard(10.0, ("trainer", Traceback())))  # that one the launcher sees
    assert names_at(memory, 1000.0) == []


def test_a_rollout_that_was_in_flight_does_not_excuse_an_error_of_an_environment() -> None:
    raised = heard(10.0, ("env server words", Traceback()))
    memory, _ = story(raised, heard(50.0, ("orchestrator", BatchReady(2, 8)), ("trainer", Stepped(3, 1.0, 1.0))))
    assert names_at(memory, 169.0) == []
    assert names_at(memory, 171.0) == [("env_error", "env server words")]


def test_an_environment_that_fails_every_minute_cannot_postpone_its_alarm() -> None:
    raised = [heard(float(at_s), ("env server words", Traceback())) for at_s in range(10, 200, 60)]
    memory, _ = story(heard(1.0, ("orchestrator", BatchReady(1, 8))), *raised)
    assert names_at(memory, 191.0) == [("env_error", "env server words")]


def test_a_resume_that_began_from_scratch_is_ended() -> None:
    run = replace(RUN, resume_step=10)
    memory, _ = story(heard(1.0, ("launcher", FromScratch("/o/checkpoints"))), run=run)
    (alarm,) = list_alarms(run, memory, 2.0, LIMITS, {})
    assert (alarm.name, alarm.answer, alarm.cause_class) == ("started_over", "restart", "env")
    memory, _ = story(heard(1.0, ("trainer", Stepped(0, 9.0, 1.0))), run=run)
    assert names_at(memory, 2.0, run) == [("started_over", "trainer")]
    memory, _ = story(heard(1.0, ("trainer", Stepped(10, 9.0, 1.0))), run=run)
    assert names_at(memory, 2.0, run) == []
    assert names_at(story(heard(1.0, ("launcher", FromScratch("/o"))))[0], 2.0) == []  # a first start


def test_a_healthy_day_raises_nothing() -> None:
    """A step in ten minutes, rollouts that come in slowly, environments that fail now and then."""
    memory = PrimeRlHistory()
    for second in range(0, 86_400, 5):
        lines: tuple[tuple[str, Message], ...] = ()
        if second % 600 == 0:
            lines += (("trainer", Stepped(second // 600, 1.0, 100.0)),)
        if second % 45 == 0:
            lines += (("orchestrator", BatchReady(second // 45 % 13, 13)),)
        if second % 1000 == 0:
            lines += (("env server words", Traceback()),)
        sample = PrimeRlSample(
            float(second), messages=lines, servers=("env server words", "inference"), written_s=float(second)
        )
        memory, _ = take(replace(RUN, max_steps=10_000), memory, sample, LIMITS)
        assert names_at(memory, float(second)) == []
    assert not memory.finished
