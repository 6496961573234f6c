"""The rules that may have something to say on a run.toml without facts: importing this registers them.

A lint of a run.toml starts twice as fast without the families that judge prime-rl files or the machine
(measured: 12 against 26 ms for all of them). rules/catalogue.py has every family.
"""

from prime_train.rules import (
    batch,
    checkpoint,
    data,
    evaluation,
    model,
    optim,
    parallel,
    paths,
    run,
    schedule,
    schema,
    secrets,
)

FAMILIES = (schema, run, model, data, batch, optim, schedule, parallel, checkpoint, evaluation, secrets, paths)

__all__ = ["FAMILIES"]
