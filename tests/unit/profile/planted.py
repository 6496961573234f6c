"""Spans of runs with a bottleneck that was planted in them. Times in seconds."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.core.spans import Span

TRAINER = "trainer-rank0"


def trainer_step(start_s: float, step: int, parts: list[tuple[str, float]], lane: str = TRAINER) -> list[Span]:
    """A step whose parts follow each other."""
    spans, now_s = [], start_s
    for component, seconds in parts:
        spans.append(Span(component, lane, now_s, now_s + seconds, step))
        now_s += seconds
    return [*spans, Span("step", lane, start_s, now_s, step)]


def trainer_steps(parts: list[tuple[str, float]], steps: int = 4) -> list[Span]:
    """The same step again and again."""
    step_s = sum(seconds for _, seconds in parts)
    return [span for number in range(steps) for span in trainer_step(number * step_s, number + 1, parts)]


def rollout_steps(
    *, steps: int = 3, rollouts: int = 4, concurrency: int = 4, turns: int = 2, decode_s: float, tool_s: float
) -> Iterator[Span]:
    """Steps in which the trainer waits for all rollouts, and then trains for a second.

    A rollout decodes and calls its tool `turns` times. It waits in the queue until one of `concurrency` places is free.
    """
    now_s, number = 0.0, 0
    for step in range(1, steps + 1):
        free_s = [now_s] * concurrency
        ready_s = now_s
        for _ in range(rollouts):
            place = min(range(concurrency), key=lambda at: free_s[at])
            lane, at_s = f"rollout-{number}", free_s[place]
            if at_s > now_s:
                yield Span("queue", lane, now_s, at_s)
            for _ in range(turns):
                yield Span("decode", lane, at_s, at_s + decode_s, 0, 10)
                yield Span("decode", "engine", at_s, at_s + decode_s, 0, 1)
                yield Span("tool", lane, at_s + decode_s, at_s + decode_s + tool_s, 0, 1)
                at_s += decode_s + tool_s
            free_s[place] = at_s
            ready_s = max(ready_s, at_s)
            number += 1
        yield from trainer_step(now_s, step, [("rollouts", ready_s - now_s), ("forward", 0.4), ("backward", 0.6)])
        now_s = ready_s + 1.0
