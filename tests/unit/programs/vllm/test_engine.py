from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from prime_train.programs.vllm.engine_program import EngineCounters
from prime_train.programs.vllm.engine_watch import (
    EngineHistory,
    EngineLimits,
    EngineSample,
    Subject,
    judge,
    learn,
    parse_sample,
)
from prime_train.supervise.watches.watch import Alarm

LIMITS = EngineLimits()
SUBJECT = Subject("inference", "http://127.0.0.1:8000")
EVERY_S = 5.0


def engine(tokens: float, running: int = 1, waiting: int = 0, preempted: int = 0, name: str = "0") -> EngineCounters:
    return EngineCounters(name, tokens, 0.1, running, waiting, preempted, False)


def at(at_s: float, *engines: EngineCounters) -> EngineSample:
    return EngineSample(at_s, 200, metrics=200, engines=engines)


def after(samples: Iterable[EngineSample], memory: EngineHistory | None = None) -> EngineHistory:
    memory = memory or EngineHistory()
    for one in samples:
        memory = learn(memory, one, LIMITS)
    return memory


def alarms(samples: Iterable[EngineSample], subject: Subject = SUBJECT, trained_step: int | None = None) -> list[Alarm]:
    return list(judge(after(samples), subject, LIMITS, trained_step))


def names(samples: Iterable[EngineSample]) -> list[str]:
    return [alarm.name for alarm in alarms(samples)]


def looks(minutes: float, begin_s: float = 0.0) -> list[float]:
    return [begin_s + EVERY_S * number for number in range(int(minutes * 60 / EVERY_S) + 1)]


# --- a dead engine behind a healthy server -------------------------------------------------------


def test_an_hour_of_work_raises_nothing() -> None:
    assert names(at(t, engine(10 * t, running=4, waiting=3)) for t in looks(60)) == []


def test_an_hour_of_nothing_to_do_raises_nothing() -> None:
    assert names(at(t, engine(100.0, running=0)) for t in looks(60)) == []


def test_requests_that_run_without_a_token_are_found_after_a_minute_and_not_before() -> None:
    working = [at(t, engine(10 * t)) for t in looks(2)]
    still = [at(t, engine(1200.0)) for t in looks(1, 120 + EVERY_S)]
    assert names([*working, *still[:-1]]) == []
    (alarm,) = alarms([*working, *still])
    assert (alarm.name, alarm.answer, alarm.cause_class, alarm.subject) == (
        "engine_still",
        "restart",
        "hang",
        "inference",
    )
    assert "no token for 65 s, 1 request running, 0 waiting; /health still answers 200" in alarm.what
    assert "py-spy dump" in alarm.fix
    assert alarm.where == SUBJECT.url


def test_an_engine_that_died_between_two_requests_is_found_by_a_request_of_our_own() -> None:
    idle = [at(t, engine(500.0, running=0)) for t in looks(5)]
    asked = [replace(at(300 + t, engine(500.0, running=0)), asked_s=t) for t in looks(1.2)]
    assert names(idle) == []
    (alarm,) = alarms([*idle, *asked])
    assert "a request of one token is open" in alarm.what


def test_tokens_that_come_again_end_the_alarm() -> None:
    still = [at(t, engine(5.0)) for t in looks(3)]
    assert names(still) == ["engine_still"]
    assert names([*still, at(185.0, engine(6.0))]) == []


def test_a_pause_that_was_overcome_is_given_again_three_times_over() -> None:
    """A graph that is captured late, a slow first request: it came back once, so it may be waited for."""
    paused = [at(t, engine(5.0)) for t in looks(50 / 60)]
    back = [at(t, engine(t)) for t in looks(1, 55.0)]
    still = [at(t, engine(115.0)) for t in looks(5, 120.0)]
    found_s = next(one.at_s for n, one in enumerate(still) if names([*paused, *back, *still[: n + 1]]))
    assert found_s == 115.0 + 3 * 55.0 + EVERY_S


def test_a_long_prompt_moves_the_cache_before_its_first_token() -> None:
    prefilling = [at(t, engine(0.0)._replace(cache_used=t / 1000)) for t in looks(5)]
    assert names(prefilling) == []


@pytest.mark.parametrize("state", ["asleep", "paused"])
def test_what_sleeps_or_is_paused_is_not_dead(state: str) -> None:
    held = engine(5.0)._replace(asleep=state == "asleep")
    assert names(replace(at(t, held), paused=state == "paused") for t in looks(10)) == []


def test_one_dead_engine_of_several_is_named() -> None:
    seen = [at(t, engine(9 * t, name="0"), engine(40.0, name="1"), engine(0.0, 0, name="2")) for t in looks(2)]
    (alarm,) = alarms(seen)
    assert alarm.subject == "inference, engine 1"


def test_a_server_that_began_again_counts_from_zero() -> None:
    assert names([at(0, engine(900.0)), *(at(t, engine(t)) for t in looks(3, 5.0))]) == []


# --- a server that is not well -------------------------------------------------------------------


def test_a_server_that_was_never_well_is_starting() -> None:
    assert names(EngineSample(t, 0, "Connection refused") for t in looks(30)) == []


def test_health_that_states_the_engine_is_dead() -> None:
    unwell = [EngineSample(t, 503) for t in looks(1, 5.0)]
    assert names([at(0, engine(1.0)), *unwell[:3]]) == []
    (alarm,) = alarms([at(0, engine(1.0)), *unwell])
    assert (alarm.name, alarm.answer) == ("engine_dead", "restart")
    assert "/health of inference has answered 503 for 65 s" in alarm.what


def test_a_server_that_answers_nothing() -> None:
    silent = [EngineSample(t, 0, "timed out") for t in looks(1.2, 5.0)]
    (alarm,) = alarms([at(0, engine(1.0)), *silent])
    assert (alarm.name, alarm.answer, alarm.cause_class) == ("engine_unanswered", "restart", "hang")


def test_a_server_whose_port_is_closed_is_dead() -> None:
    """vLLM 0.32 closes it after the death of its engine, and waits for an answer of the engine to a weight update."""
    closed = [EngineSample(t, 0, "Connection refused", refused=True) for t in looks(0.4, 5.0)]
    assert names([at(0, engine(1.0)), *closed[:3]]) == []
    (alarm,) = alarms([at(0, engine(1.0)), *closed[:4]])
    assert (alarm.name, alarm.answer) == ("engine_dead", "restart")
    assert "inference was last well 20 s ago, and does not answer any more (Connection refused)" in alarm.what


def test_a_server_that_reported_its_dead_engine_is_not_waited_for() -> None:
    silent = [EngineSample(t, 0, "timed out") for t in looks(0.2, 10.0)]
    assert names([at(0, engine(1.0)), EngineSample(5.0, 503), *silent[:2]]) == []
    assert names([at(0, engine(1.0)), EngineSample(5.0, 503), *silent]) == ["engine_dead"]


def test_a_server_that_is_well_again_is_forgiven() -> None:
    assert (
        names([at(0, engine(1.0)), EngineSample(5.0, 503), at(10.0, engine(2.0)), EngineSample(40.0, 0, "timed out")])
        == []
    )


def test_where_the_config_only_wants_to_hear_of_it_nothing_is_restarted() -> None:
    (alarm,) = alarms([at(t, engine(5.0)) for t in looks(2)], replace(SUBJECT, answer="alert"))
    assert alarm.answer == "alert"
    assert 'watch.engine = "restart"' in alarm.fix


def test_metrics_that_are_not_there_leave_the_watch_blind_which_is_reported() -> None:
    (alarm,) = alarms([at(0, engine(1.0)), *(EngineSample(t, 200, metrics=404) for t in looks(2, 5.0))])
    assert (alarm.name, alarm.answer) == ("engine_uncounted", "alert")
    assert "/metrics of inference has answered 404" in alarm.what


# --- a slow server -------------------------------------------------------------------------------


def test_a_queue_that_grows_for_five_minutes_is_worth_a_note() -> None:
    (alarm,) = alarms(at(t, engine(9 * t, running=8, waiting=int(t))) for t in looks(6))
    assert (alarm.name, alarm.answer) == ("engine_queue", "note")
    assert "360 requests wait and 8 run; 300 more wait than 5 min ago" in alarm.what


def test_a_long_queue_that_shrinks_is_not() -> None:
    assert names(at(t, engine(9 * t, running=8, waiting=900 - int(t))) for t in looks(6)) == []


def test_preemptions_are_worth_a_note() -> None:
    assert names(at(t, engine(9 * t, preempted=int(t))) for t in looks(6)) == ["engine_preempts"]
    assert names(at(t, engine(9 * t, preempted=1000)) for t in looks(6)) == []


def test_weights_that_are_not_updated_are_reported() -> None:
    served = [replace(at(t, engine(9 * t)), weight_version=20) for t in looks(1)]
    assert alarms(served, trained_step=28) == []
    (alarm,) = alarms(served, trained_step=29)
    assert alarm.name == "engine_behind"
    assert "serves the weights of step 20, 9 behind the trainer" in alarm.what


# --- what the program writes ---------------------------------------------------------------------


def test_a_line_of_the_program_is_a_sample() -> None:
    line = json.dumps(
        {
            "at_s": 12.5,
            "health": 200,
            "fault": "",
            "metrics": 200,
            "engines": [engine(5.0)],
            "asked_s": None,
            "answered": 200,
            "paused": False,
            "weight_version": "default",
        }
    )
    assert parse_sample(json.loads(line)) == replace(at(12.5, engine(5.0)), weight_version=None)
    assert parse_sample(json.loads(line.replace('"default"', '"41"'))).weight_version == 41
    for version in ("1" + "0" * 400, '"1' + "0" * 5000 + '"', '"\u00b2"', "-1", "true", "1.5", "[]"):
        assert parse_sample(json.loads(line.replace('"default"', version))).weight_version is None
