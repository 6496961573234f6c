"""Folds losses, measures and rewards of tasks into the State, and takes back those of weights that are gone."""

from __future__ import annotations

from dataclasses import replace

from prime_train import events
from prime_train.supervise.core.state import State, TaskScore, Validation, evolve

EVALUATIONS_KEPT = 64  # a resume from an earlier checkpoint goes back to one of them
MEASURES_KEPT = 1024  # of sets of text and benchmarks; an evaluation has a few of them, or some dozens


def rewind(state: State, step: int) -> State:
    """The state without the evaluations after `step`, because they belong to weights that are gone."""
    first, kept = state.first_validation, tuple(one for one in state.recent_validations if one.step <= step)
    first = first if first is not None and first.step <= step else None
    scores = tuple(score for score in state.recent_scores if score.step <= step)
    # A later evaluation is lost with its weights, but the first one still shows where the run began.
    at_first = {
        score.environment: replace(score, step=score.first_step, reward=score.first_reward)
        for score in state.task_scores
        if score.first_step <= step
    }
    latest = {score.environment: score for score in scores if score.environment in at_first}
    return evolve(
        state,
        first_validation=first,
        last_validation=kept[-1] if kept else first,
        recent_validations=kept,
        task_scores=tuple((at_first | latest).values()),
        recent_scores=scores,
        measured=tuple(one for one in state.measured if one.step <= step),
        samples=() if step == 0 else state.samples,
    )


def fold_validation(state: State, event: events.Evaluated) -> State:
    latest, first = Validation(event.step, event.loss, event.tokens), state.first_validation
    return evolve(
        state,
        first_validation=latest if first is None or first.step == event.step else first,
        last_validation=latest,
        recent_validations=(*state.recent_validations, latest)[-EVALUATIONS_KEPT:],
    )


def fold_measured(state: State, event: events.Measured) -> State:
    return evolve(state, measured=(*state.measured, event)[-MEASURES_KEPT:])


def fold_tasks(state: State, event: events.TasksEvaluated) -> State:
    earlier = {score.environment: score for score in state.task_scores}
    first = earlier.get(event.environment)
    # A step that is evaluated again after a resume replaces its own first value.
    first = None if first is not None and first.first_step == event.step else first
    score = TaskScore(
        environment=event.environment,
        first_step=first.first_step if first else event.step,
        first_reward=first.first_reward if first else event.reward,
        step=event.step,
        reward=event.reward,
    )
    return evolve(
        state,
        task_scores=tuple((earlier | {event.environment: score}).values()),
        recent_scores=(*state.recent_scores, score)[-EVALUATIONS_KEPT:],
    )
