"""Puts settings that `prime-train set` changes in force in a trainer: the learning rate, and the rest by functions.

The settings are those that [[command.settings]] declares. `lr` or `learning_rate` is the rate that the first group
in each optimizer has; the other groups keep their ratio to it, and the schedule goes on. A script takes the rest:

    from prime_train.callbacks.settings import on_settings

    on_settings(lambda values: sampler.use(values["batch_size"]))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prime_train import live

RATE_NAMES = ("lr", "learning_rate")
# What get_last_lr returns is the second, which the Trainer of transformers logs as the rate of the next step.
_RATES_OF_SCHEDULERS = ("base_lrs", "_last_lr")
_functions: list[Callable[[dict[str, Any]], None]] = []


def on_settings(function: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """Have `function(values)` called before the first step with other values, on every rank; may be a decorator.

    `values` has what has changed, without the learning rate.
    """
    _functions.append(function)
    return function


class SettingsInForce:
    """The settings in force in one trainer."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def take(self, done: int, optimizers: Sequence[Any], schedulers: Sequence[Any]) -> None:
        """Put in force what has changed. Call it once before each step, on every rank; `done`: steps that are done."""
        values = live.settings(done)
        changed = {name: value for name, value in values.items() if self._values.get(name) != value}
        self._values = values
        for name in RATE_NAMES:
            if name in changed:
                rate = changed.pop(name)
                for optimizer in optimizers:
                    set_rate(rate, optimizer, schedulers)
        if changed:
            for function in _functions:
                function(changed)
            if not _functions:
                live.note(f"no function of on_settings takes {', '.join(changed)}")


def set_rate(rate: float, optimizer: Any, schedulers: Sequence[Any]) -> None:
    """Make `rate` the base for the schedule in the first group, and change all other rates by the same factor.

    A checkpoint holds these bases, so a resumed trainer has the rate already, and nothing changes.
    """
    groups = optimizer.param_groups
    own = [one for each in schedulers for one in _walk(each) if _has_groups(one, groups)]
    bases = next((one.base_lrs for one in own if hasattr(one, "base_lrs")), [group["lr"] for group in groups])
    first = float(bases[0])
    if first == rate or first <= 0:  # 0 has no factor
        return
    factor = rate / first
    for group in groups:
        for name in ("lr", "initial_lr"):
            if hasattr(group.get(name), "fill_"):  # a tensor, which a compiled optimizer reads
                group[name].fill_(_scale(float(group[name]), factor, first, rate))
            elif name in group:
                group[name] = _scale(group[name], factor, first, rate)
    for one in own:
        for name in _RATES_OF_SCHEDULERS:
            if hasattr(one, name):
                setattr(one, name, [_scale(value, factor, first, rate) for value in getattr(one, name)])


def _scale(value: Any, factor: float, first: float, rate: float) -> Any:
    return rate if value == first else value * factor


def _walk(scheduler: Any) -> Iterator[Any]:
    """The scheduler, and those that it chains."""
    scheduler = getattr(scheduler, "scheduler", scheduler)  # accelerate wraps it
    yield scheduler
    for one in getattr(scheduler, "_schedulers", ()):
        yield from _walk(one)


def _has_groups(scheduler: Any, groups: Any) -> bool:
    return getattr(getattr(scheduler, "optimizer", None), "param_groups", None) is groups
