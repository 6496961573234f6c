"""All rules: importing a family registers it."""

from prime_train.rules import (
    batch,
    checkpoint,
    data,
    disk,
    evaluation,
    files,
    host,
    ignores,
    model,
    parallel,
    run,
    schedule,
    schema,
)
from prime_train.rules.base import RULES

FAMILIES = (schema, run, model, data, batch, schedule, parallel, checkpoint, evaluation, host, disk, files, ignores)

__all__ = ["FAMILIES", "RULES"]
