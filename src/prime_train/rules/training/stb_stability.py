"""The answer to a training that becomes unstable, where it could do nothing. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule
from prime_train.spec import RunSpec
from prime_train.spec.live_values import RATE_NAMES, read_rates


@rule("STB001", Severity.WARNING)
def policy_without_a_rate(run: RunSpec) -> Problems:
    """The policy on instability needs a learning rate that changes live.

    without one it reports an instability and changes nothing

    Source: supervise/services/instability.py.

    Bad (command):
        [prime_train.instability]
        policy = "auto"
    Good (command):
        [prime_train.instability]
        policy = "auto"
        [[command.settings]]
        name = "lr"
        value = 0.001
    """
    if run.prime_train.instability.policy != "auto" or read_rates(run):
        return
    key = "prime_train.instability.policy"
    if run.command is None:
        what = "`policy` is auto, and no learning rate of this run changes while it trains"
        yield Problem(key, what, patch={key: "off"})
    else:
        what = f"`policy` is auto, and no entry in [[command.settings]] is named {' or '.join(RATE_NAMES)}"
        yield Problem(key, what, fix="add such an entry, with the rate that the script begins with as `value`")
