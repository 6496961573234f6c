"""Settings of model.init_from that contradict each other. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule
from prime_train.spec import RunSpec


@rule("INI001", Severity.WARNING)
def details_of_no_run(run: RunSpec) -> Problems:
    """model.init_step and model.init_optimizer need model.init_from.

    they choose what is read from the checkpoint of another run, and no run is named

    Source: trainer/saves/start_from.py (both belong to the run that init_from names).

    Bad:
        [model]
        init_step = 500
    Bad:
        [model]
        init_optimizer = true
    Good:
        [model]
        init_from = "first"
        init_step = 500
    """
    model = run.model
    if model.init_from is not None:
        return
    for name, is_set in (("init_step", model.init_step is not None), ("init_optimizer", model.init_optimizer)):
        if is_set:
            yield Problem(
                f"model.{name}", "`model.init_from` is not set", fix='model.init_from = "RUN", or take it out'
            )


@rule("INI002", Severity.WARNING)
def moments_of_adapters(run: RunSpec) -> Problems:
    """model.init_optimizer should not be set with [model.lora], unless the other run has the same adapters.

    a run that trained all weights has no moments of adapters, and the trainer refuses to start

    Source: LoRA, arXiv 2106.09685, s. 4.1 (only the adapters are trained).

    Bad:
        [model]
        init_from = "first"
        init_optimizer = true
        [model.lora]
        rank = 8
        [optim]
        lr = 1e-4
    Good:
        [model]
        init_from = "first"
        [model.lora]
        rank = 8
        [optim]
        lr = 1e-4
    """
    if run.model.init_from is not None and run.model.init_optimizer and run.model.lora is not None:
        yield Problem(
            "model.init_optimizer", "[model.lora] trains adapters alone", fix="take it out, unless both have them"
        )
