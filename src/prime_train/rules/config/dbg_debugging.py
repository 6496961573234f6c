"""Settings for debugging that a real run should not have. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of


@rule("DBG001", Severity.WARNING)
def trained_on_fake_data(run: RunSpec) -> Problems:
    """A run should not train on random tokens.

    the trainer makes up its batches: the run measures speed and learns nothing

    Source: prime-rl, trainer.data.fake of RL, data.type = "fake" of fine-tuning.

    Bad (prime-rl 2026-08):
        [trainer.data.fake]
        batch_size = 2
    Good (prime-rl 2026-08):
        [trainer.data]
    """
    trainer = prime_rl_of(run).trainer
    if trainer is not None and trainer.fake_data:
        yield Problem("trainer.fake_data", "the batches are random tokens", fix="take it out to train on real data")


@rule("DBG002", Severity.WARNING)
def model_cut_down(run: RunSpec) -> Problems:
    """A run should train the whole model, with its weights.

    with debug.num_layers or debug.random_init the trainer has another model than the server

    Source: prime-rl, trainer.model.debug.

    Bad (prime-rl 2026-08):
        [trainer.model.debug]
        num_layers = 2
    Bad (prime-rl 2026-08):
        [trainer.model.debug]
        random_init = true
    Good (prime-rl 2026-08):
        [trainer.model.debug]
        random_init = false
    """
    trainer = prime_rl_of(run).trainer
    if trainer is None:
        return
    if trainer.debug_layers is not None:
        yield suggest("trainer.debug_layers", f"the model has only {trainer.debug_layers} layers", None)
    if trainer.random_init:
        yield suggest("trainer.random_init", "the weights are random", None)


@rule("DBG003", Severity.WARNING)
def benchmark_left_on(run: RunSpec) -> Problems:
    """bench does not train.

    the program measures a few steps, and ends with exit code 0

    Source: prime-rl, bench (until 2026-08).

    Bad (prime-rl 2026-05):
        bench = true
    Good (prime-rl 2026-05):
        bench = false
    """
    parts = prime_rl_of(run)
    if parts.trainer is not None and parts.trainer.bench:
        yield suggest("trainer.bench", "it measures a few steps on made-up data", None)


@rule("DBG004", Severity.WARNING)
def eager_server(run: RunSpec) -> Problems:
    """The server of a run should use CUDA graphs.

    with enforce_eager each token starts every kernel from Python: small models decode at a fraction of their speed

    Source: vLLM, enforce_eager.

    Bad (prime-rl 2026-08):
        [inference.vllm]
        enforce_eager = true
    Good (prime-rl 2026-08):
        [inference.vllm]
        enforce_eager = false
    """
    if run.inference is not None and run.inference.enforce_eager and prime_rl_of(run).trainer is not None:
        yield suggest("inference.enforce_eager", "true: no CUDA graphs", None)
