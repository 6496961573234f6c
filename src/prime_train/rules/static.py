"""The families with a rule that judges a config alone, whatever its dialect: importing this registers them.

A lint has no facts, and the families that judge the machine alone would be loaded for nothing.
rules/catalogue.py has every family.
"""

from prime_train.rules import (
    batch,
    checkpoint,
    context,
    data,
    deployment,
    environment_variables,
    environments,
    evaluation,
    finetune,
    lora,
    lora_serving,
    memory,
    mesh,
    model,
    network,
    optim,
    parallel,
    paths,
    resume,
    rollouts,
    run,
    sampling,
    schedule,
    schema,
    secrets,
    serving,
    tokens,
    weights,
)

FAMILIES = (
    schema,
    run,
    model,
    weights,
    data,
    tokens,
    context,
    batch,
    rollouts,
    finetune,
    sampling,
    optim,
    schedule,
    parallel,
    deployment,
    mesh,
    lora,
    lora_serving,
    environments,
    checkpoint,
    resume,
    evaluation,
    network,
    environment_variables,
    secrets,
    paths,
    memory,
    serving,
)

__all__ = ["FAMILIES"]
