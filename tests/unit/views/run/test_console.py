import errno
import io
import re
from dataclasses import fields, replace
from typing import Any, get_args

import pytest

from prime_train.events import AlarmCleared, AlarmRaised, Event, LaunchAsked, Phase, Progress, Record
from prime_train.supervise.core.event_text import describe
from prime_train.supervise.core.fold import fold, fold_all
from prime_train.supervise.core.state import State
from prime_train.views.run import console
from prime_train.views.run.status import supervised_status
from tests.unit.views.written_runs import BEGAN_S, DEATH, FIRST_ATTEMPT, SECOND_ATTEMPT, WHOLE_LIFE, Timeline, records


def _state(timeline: Timeline) -> State:
    return fold_all(records(timeline))


def _plain(timeline: Timeline, started_s: float = BEGAN_S) -> list[str]:
    """The lines of a run without a terminal, without their clock times."""
    lines: list[str] = []
    show = console.plain(lines.append, started_s)
    state = State()
    for record in records(timeline):
        state = fold(state, record)
        show(state, [record])
    assert all((line[2] == ":" and line[8:10] == "  ") or line[:10].isspace() for line in lines)
    return [line[10:] for line in lines]


FAILURE = [
    "attempt 1 failed  signal",
    "  what  killed by signal 9 (SIGKILL)",
    "  why   something outside sent it",
]


def test_plain_lines_show_starts_losses_saves_the_failure_and_the_restart() -> None:
    lines = _plain(WHOLE_LIFE)
    assert lines == [
        "run small opened, to step 100",
        "attempt 1 starts from the beginning",
        f"trainer started, pid {2**22 + 1}",
        "trainer ready: 4,300,000 parameters on 1 x cpu, fp32",
        "step 10 of 100 (10%), loss 7.5000, 4000 tokens/s",
        "step 50 of 100 (50%), loss 5.5000, 4100 tokens/s, 6.2 s left",
        "validation loss 5.7500 at step 50",
        "checkpoint of step 50 complete: 48 MiB in 0.4 s, training waited 20 ms",
        "step 60 of 100 (60%), loss 5.2500, held-out 5.7500, 4200 tokens/s, 5.6 s left",
        *FAILURE,
        "attempt 2 resumes from step 50; not taken: step_60: no COMPLETE.json: the save did not finish",
        f"trainer started, pid {2**22 + 1}",
        "trainer ready: 4,300,000 parameters on 1 x cpu, fp32",
        "step 100 of 100 (100%), loss 4.5000, held-out 5.7500, 4100 tokens/s, 0.0 s left",
        "validation loss 4.6250 at step 100",
        "checkpoint of step 100 complete: 48 MiB in 0.3 s, training waited 10 ms",
        "attempt 2 finished",
        "run finished: step 100 of 100",
    ]
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(
    ("watch", "subject", "what", "raised", "cleared"),
    [
        ("gpu", "GPU 3", "it runs hot", "gpu: GPU 3: it runs hot", "gpu: GPU 3: over: too hot"),
        ("disk", "/data", "/data is full in 3 s", "disk: /data is full in 3 s", "disk: /data: over: too hot"),
        ("hang", "", "no sign of life", "hang: no sign of life", "hang: over: too hot"),
    ],
)
def test_an_alarm_names_what_it_is_about_once(watch: str, subject: str, what: str, raised: str, cleared: str) -> None:
    alarm = AlarmRaised(1, watch, f"{watch}_too_hot", subject, "note", "hardware", what, "", "", "", 1)
    assert describe(alarm) == raised
    assert describe(AlarmCleared(1, watch, f"{watch}_too_hot", subject)) == cleared


def test_every_event_has_a_text_except_those_that_are_shown_as_numbers() -> None:
    values = {"int": 0, "float": 1.0, "bool": True, "str": "x", "int | None": None, "float | None": None}

    def build(kind: type[Any]) -> Event:
        return kind(**{field.name: values.get(str(field.type), ()) for field in fields(kind)})  # type: ignore[no-any-return]

    silent = {kind.__name__ for kind in get_args(Event) if not describe(build(kind))}
    assert silent == {"Progress", "Sampled"}


def test_events_of_an_earlier_supervisor_are_not_repeated() -> None:
    assert _plain(WHOLE_LIFE, started_s=BEGAN_S + 23.5) == ["attempt 2 finished", "run finished: step 100 of 100"]


def test_progress_is_shown_each_twentieth_of_the_run_and_each_ten_seconds() -> None:
    began: Timeline = (*FIRST_ATTEMPT[:5], (2.5, "trainer-001-rank0", Progress(1, 1, 8.0, 10.0, 1)))
    fast: Timeline = [(3 + step / 100, "trainer-001-rank0", Progress(1, step, 8.0, 10.0, 1)) for step in range(2, 100)]
    slow: Timeline = [
        (2.5 + step * 3.0, "trainer-001-rank0", Progress(1, 1 + step, 8.0, 10.0, 1)) for step in range(1, 5)
    ]
    assert len([line for line in _plain((*began, *fast)) if line.startswith("step")]) == 1 + 19
    assert [line.partition(" (")[0] for line in _plain((*began, *slow)) if line.startswith("step")] == [
        "step 1 of 100",
        "step 5 of 100",
    ]


def test_the_pace_is_that_of_the_live_attempt() -> None:
    state = _state((*FIRST_ATTEMPT, *DEATH, *SECOND_ATTEMPT))
    assert supervised_status(state, 0.0).step_s == pytest.approx(6.0 / 40)
    assert supervised_status(state, 0.0).left_s == 0.0
    assert supervised_status(_state(FIRST_ATTEMPT), 0.0).left_s == pytest.approx(40 * 7.0 / 50)
    assert supervised_status(_state(FIRST_ATTEMPT[:6]), 0.0).left_s is None
    assert supervised_status(_state((*FIRST_ATTEMPT, *DEATH)), 0.0).left_s is None


def test_a_control_character_in_a_cause_is_not_sent_to_the_terminal() -> None:
    record = Record(BEGAN_S, "trainer-001-rank0", 0, Phase(1, "data", "tokenising \x1b[31m\nred"))
    assert console.notice(record) == "data: tokenising \ufffd[31m red"


class Terminal(io.StringIO):
    """A stream that reports a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_live_screen_shows_the_step_the_cause_and_leaves_the_history_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    with console.open_console(stream) as show:
        state = State()
        for record in records((*FIRST_ATTEMPT, *DEATH, *SECOND_ATTEMPT)):
            late = replace(record, time_s=record.time_s + 10 * 365 * 86400)  # after the console was opened
            state = fold(state, late)
            show(state, [late])
    assert "\x1b[31m" not in stream.getvalue()
    screen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    last = screen[screen.rindex("small  running") :]
    assert "step 100 of 100 (100%)" in last
    assert "attempt 2, 1 restart; attempt 1 failed: killed by signal 9 (SIGKILL)" in last
    assert "checkpoint step 50" in last
    assert screen.index("attempt 1 starts from the beginning") < screen.index("attempt 2 resumes from step 50")


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with console.open_console(stream) as show:
        late = Record(BEGAN_S + 10 * 365 * 86400, "supervisor", 0, LaunchAsked(1, 0))
        show(fold(State(), late), [late])
    assert stream.getvalue().endswith("  attempt 1 starts from the beginning\n")
    assert "\x1b" not in stream.getvalue()


class Closed(io.StringIO):
    """A stream whose terminal was closed."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, f"no reader for {text}")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_that_is_closed_does_not_end_the_run(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    state = State()
    with console.open_console(Closed(is_terminal=is_terminal)) as show:
        for record in records(WHOLE_LIFE):
            late = replace(record, time_s=record.time_s + 1e9)
            state = fold(state, late)
            show(state, [late])


def test_what_fails_in_the_run_is_not_taken_for_a_closed_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(OSError, match="the run's own"), console.open_console(Closed(is_terminal=True)):
        raise OSError(errno.ENOENT, "the run's own")


def test_a_clock_that_is_set_back_silences_nothing() -> None:
    lines: list[str] = []
    show = console.plain(lines.append, BEGAN_S)
    before, *after = records(WHOLE_LIFE)
    show(State(), [before])
    late = [replace(record, time_s=record.time_s - 7200.0) for record in after if isinstance(record.event, LaunchAsked)]
    show(State(), late)
    assert [line[10:] for line in lines][1] == "attempt 1 starts from the beginning"
