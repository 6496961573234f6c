"""The answer to a training that becomes unstable, where it could do nothing. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule
from prime_train.spec import RunSpec
from prime_train.spec.live_values import RATE_NAMES, read_rates


@rule("STB001", Severity.WARNING)
def policy_without_a_way(run: RunSpec) -> Problems:
    """The policy on instability needs a learning rate that changes live, and checkpoints to roll back to.

    without them it reports an instability and changes nothing

    Source: supervise/services/instability.py.

    Bad:
        [parallel]
        machines = 2
        [prime_train.instability]
        policy = "auto"
    Bad:
        [checkpoint]
        interval_steps = 2000
        [run]
        max_steps = 1000
        [prime_train.instability]
        policy = "auto"
        action = "roll_back"
    Good:
        [checkpoint]
        interval_steps = 100
        [prime_train.instability]
        policy = "auto"
        action = "roll_back"
    """
    settings = run.prime_train.instability
    if settings.policy == "auto" and not read_rates(run):
        if run.command is not None:
            fix = f'[[command.settings]] with `name = "{RATE_NAMES[0]}"` and its `value`'
            what = f"no setting of the script is named {' or '.join(RATE_NAMES)}, so no rate can be lowered"
        else:
            what, fix = "no learning rate of this run changes while it trains", '`policy = "off"`'
        yield Problem("prime_train.instability.policy", f'policy = "auto", and {what}', fix=fix)
    interval = run.checkpoint.interval_steps
    has_none = run.command is None and (interval is None or interval >= run.run.max_steps)
    if settings.policy != "off" and settings.action == "roll_back" and has_none:
        what = 'action = "roll_back", and no checkpoint is saved before the last step'
        yield Problem("prime_train.instability.action", what, fix="a `checkpoint.interval_steps` below `run.max_steps`")
