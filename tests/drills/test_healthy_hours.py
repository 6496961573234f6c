"""Hours of healthy running on a simulated clock, through the code that judges a real run: nothing is ever wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from prime_train.core.rundir import RunDir
from prime_train.events import (
    AlarmRaised,
    CheckpointSaved,
    CheckpointStarted,
    ChildStarted,
    Evaluated,
    Event,
    LaunchAsked,
    Phase,
    Progress,
    Record,
    RunOpened,
    TrainerStarted,
)
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.policy import SUSPECT_S, Policy, decide
from prime_train.supervise.core.state import State
from prime_train.supervise.services.watch_runner import WatchRunner
from prime_train.supervise.watches.hang.watch import SilenceWatch

LOOK_S = 5.0
HOURS_S = 2 * 3600.0
_NOWHERE = Path("/nowhere")  # a watch writes there only where it fails itself
ACTIONS = frozenset({"Wait"})  # all that a healthy run needs


class Rhythm(NamedTuple):
    """How a healthy run spends its time, in seconds."""

    setup_s: float = 240.0
    step_s: float = 2.0
    hiccup_s: float = 8.0  # of every 50th step: data, a slow disk, a garbage collection
    evaluation_s: float = 720.0
    evaluate_every: int = 300
    save_s: float = 240.0  # in the background, beside the steps
    wait_for_save_s: float = 60.0  # of the trainer itself
    save_every: int = 100


@dataclass
class Simulated:
    """A trainer's events and their times, one after the other."""

    rhythm: Rhythm
    now_s: float = 1_000_000.0
    written: int = 0
    saves: list[tuple[float, int]] = field(default_factory=list)

    def events(self) -> Iterator[Record]:
        yield self._reported("supervisor", RunOpened("healthy", 1, 10**9, "0"))
        yield self._reported("supervisor", LaunchAsked(1, 0))
        yield self._reported("supervisor", ChildStarted(1, "trainer", 2, 3, "/log"))
        for phase in ("setup", "tokenizer", "data", "compile"):
            yield self._reported("trainer", Phase(1, phase))
            self.now_s += self.rhythm.setup_s / 4
        yield self._reported("trainer", TrainerStarted(1, 2, 0, 1, "cpu", "fp32", 1, 1, 0))
        yield self._reported("trainer", Phase(1, "train"))
        end_s, step = self.now_s + HOURS_S, 0
        while self.now_s < end_s:
            step += 1
            yield from self._step(step)

    def _step(self, step: int) -> Iterator[Record]:
        rhythm = self.rhythm
        self.now_s += rhythm.step_s + (rhythm.hiccup_s if step % 50 == 0 else 0.0)
        yield self._reported("trainer", Progress(1, step, 1.0, 1.0, step))
        while self.saves and self.saves[0][0] <= self.now_s:
            yield self._reported("trainer", CheckpointSaved(1, self.saves.pop(0)[1], 1, 1.0, 1.0))
        if step % rhythm.save_every == 0 and not self.saves:
            yield self._reported("trainer", CheckpointStarted(1, step))
            self.saves.append((self.now_s + rhythm.save_s, step))
            yield self._reported("trainer", Phase(1, "checkpoint"))
            self.now_s += rhythm.wait_for_save_s
            yield self._reported("trainer", Phase(1, "train"))
        if step % rhythm.evaluate_every == 0:
            yield self._reported("trainer", Phase(1, "evaluate"))
            self.now_s += rhythm.evaluation_s
            yield self._reported("trainer", Evaluated(1, step, 1.0, 1))
            yield self._reported("trainer", Phase(1, "train"))

    def _reported(self, writer: str, event: Event) -> Record:
        self.written += 1
        return Record(self.now_s, writer, self.written, event)


def found(rhythm: Rhythm, run_dir: RunDir, allowed: frozenset[str] = ACTIONS) -> list[object]:
    """What the supervisor would have done, or told, that a healthy run has no need of."""
    policy = Policy()
    watching = WatchRunner([SilenceWatch(policy)], run_dir)
    state, looked_s, wrong = State(), 0.0, list[object]()
    for record in Simulated(rhythm).events():
        while state.live is not None and state.live.children and looked_s + LOOK_S < record.time_s:
            looked_s = max(looked_s + LOOK_S, record.time_s - 3600.0)
            action = decide(state, policy, looked_s)
            wrong += [action] if type(action).__name__ not in allowed else []
            wrong += [event for event in watching.look(state, looked_s) if isinstance(event, AlarmRaised)]
        looked_s = max(looked_s, record.time_s - LOOK_S)
        state = fold(state, record)
    assert state.step > 0
    return wrong


def test_nothing_is_found_in_two_hours_with_long_evaluations_and_saves(tmp_path: Path) -> None:
    assert found(Rhythm(), RunDir(tmp_path)) == []


@settings(max_examples=25, deadline=None)
@given(
    st.builds(
        Rhythm,
        setup_s=st.floats(10, 800),
        step_s=st.floats(0.5, 55),
        hiccup_s=st.floats(0, 55),
        evaluation_s=st.floats(1, 1790),
        evaluate_every=st.integers(20, 500),
        save_s=st.floats(1, 590),
        wait_for_save_s=st.floats(0, 600),
        save_every=st.integers(10, 300),
    )
)
def test_nothing_is_found_for_any_the_rhythm(rhythm: Rhythm) -> None:
    assume(rhythm.step_s + rhythm.hiccup_s < max(60.0, 5 * rhythm.step_s))  # the limit before the first such pause
    # Only a pause that ends within seconds of the shortest limit, 60 s, is checked (Suspect); nothing is ever found.
    is_close = rhythm.step_s + rhythm.hiccup_s > 60 - SUSPECT_S - LOOK_S
    assert found(rhythm, RunDir(_NOWHERE), ACTIONS | {"Suspect"} if is_close else ACTIONS) == []


def test_the_same_code_finds_a_trainer_that_falls_silent(tmp_path: Path) -> None:
    """The hours above would prove nothing if this did not hold."""
    assert found(Rhythm(evaluation_s=1810.0), RunDir(tmp_path)) != []
    assert found(Rhythm(hiccup_s=700.0), RunDir(tmp_path)) != []
