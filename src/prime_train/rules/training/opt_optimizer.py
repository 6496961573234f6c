"""Optimizer settings with which a model learns nothing, or forgets what it knows. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule, suggest, unused
from prime_train.spec import Optim, RunSpec
from prime_train.spec.answers import policy_of, prime_rl_of

_LORA_LOW, _LORA_HIGH = 2e-6, 2e-3
_FULL_RL_HIGH, _FULL_SFT_HIGH, _PRETRAIN_HIGH = 1e-4, 1e-3, 3e-2
_ADAM = ("adamw", None)
_PRETRAINING_DECAY = 0.1


@rule("OPT001", Severity.WARNING)
def rate_out_of_the_usual(run: RunSpec) -> Problems:
    """The learning rate should be in the usual range for the kind of training.

    with a smaller rate an adapter hardly changes during the run; with a larger one the model forgets what it knew

    With AdamW: LoRA above 2e-6 and at most 2e-3, full fine-tuning at most 1e-3, full RL at most 1e-4, pretraining at
    most 3e-2.

    Source: LoRA Without Regret (Thinking Machines, 2025: about ten times the full rate); rates of prime-rl's
    examples, 1e-6 to 1e-4.

    Bad (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        [orchestrator.model.lora]
        name = "adapter"
    Bad (prime-rl 2026-08):
        [trainer.optim]
        lr = 0.001
    Bad (prime-rl 2026-08 sft):
        [optim]
        lr = 0.02
    Bad:
        [optim]
        lr = 0.5
    Bad (rl):
        [model]
        path = "models/mine"
        [tokenizer]
        path = "models/mine"
        [optim]
        lr = 0.001
    Good (rl):
        [optim]
        lr = 0.001
    Good (prime-rl 2026-08):
        [trainer.optim]
        lr = 3e-6
    """
    parts = prime_rl_of(run)
    lr, trainer = run.optim.lr, parts.trainer
    if lr == 0 or (trainer is not None and trainer.optimizer not in _ADAM):
        return
    low, why = 0.0, ""
    from_trained = run.model.starts_trained  # in a run.toml
    if parts.lora is not None or run.model.lora is not None:
        on_text = parts.finetune is not None or (parts.lora is None and policy_of(run) is None)
        low, high, what, usual = _LORA_LOW, _LORA_HIGH, "LoRA", 1e-4 if on_text else 1e-5
    elif parts.rollout is not None or (policy_of(run) is not None and from_trained):
        high, what, usual = _FULL_RL_HIGH, "RL on all weights", 1e-6
    elif trainer is not None or (run.run.kind == "sft" and from_trained):
        high, what, usual = _FULL_SFT_HIGH, "fine-tuning all weights", 2e-5
    else:
        high, what, usual = _PRETRAIN_HIGH, "pretraining", 1e-3
        why = "steps of this size overshoot: the loss rises or becomes nan"
    if not low < lr <= high:
        yield suggest("optim.lr", f"{lr:g} is {'low' if lr <= low else 'high'} for {what}", usual, why=why)


@rule("OPT002", Severity.WARNING)
def decay_of_pretraining(run: RunSpec) -> Problems:
    """Weight decay of 0.1 belongs to pretraining.

    every step pulls the weights of a trained model, or of an adapter, towards zero: the model forgets what it knows

    Source: prime-rl's default 0.01 and its examples, 0 to 0.1; AdamW, arXiv 1711.05101.

    Bad (prime-rl 2026-08):
        [trainer.optim]
        weight_decay = 0.1
    Good (prime-rl 2026-08):
        [trainer.optim]
        weight_decay = 0.0
    """
    parts = prime_rl_of(run)
    if (parts.rollout is not None or parts.lora is not None) and run.optim.weight_decay >= _PRETRAINING_DECAY:
        yield suggest("optim.weight_decay", f"{run.optim.weight_decay:g}", 0.0)


@rule("OPT003", Severity.WARNING)
def gradients_not_clipped(run: RunSpec) -> Problems:
    """Gradients should be clipped.

    one batch with a huge gradient can undo the run, because nothing limits the size of the step

    Source: On the difficulty of training recurrent neural networks, arXiv 1211.5063, s. 3.2.

    Bad (prime-rl 2026-08):
        [trainer.optim]
        max_norm = "None"
    Good (prime-rl 2026-08):
        [trainer.optim]
        max_norm = 1.0
    """
    if prime_rl_of(run).trainer is not None and run.optim.clip_norm is None:
        yield suggest("optim.clip_norm", "no limit", 1.0)


@rule("OPT004", Severity.ERROR)
def gradients_clipped_to_nothing(run: RunSpec) -> Problems:
    """A clipping norm of 0 leaves no gradient.

    every gradient is scaled to the norm: at 0 all gradients are zero, and nothing is learnt

    Source: torch.nn.utils.clip_grad_norm_.

    Bad (prime-rl 2026-08):
        [trainer.optim]
        max_norm = 0.0
    Good (prime-rl 2026-08):
        [trainer.optim]
        max_norm = 0.5
    """
    if run.optim.clip_norm == 0:
        yield suggest("optim.clip_norm", "0: every gradient becomes zero", 1.0)


@rule("OPT005", Severity.WARNING)
def rate_of_zero(run: RunSpec) -> Problems:
    """A learning rate of 0 trains nothing.

    every step leaves the weights as they are

    Source: AdamW, arXiv 1711.05101, algorithm 2 (the rate multiplies the whole step).

    Bad (prime-rl 2026-08):
        [trainer.optim]
        lr = 0.0
    Good (prime-rl 2026-08):
        [trainer.optim]
        lr = 1e-6
    """
    if run.optim.lr == 0:
        yield suggest("optim.lr", "0", 1e-6)


@rule("OPT006", Severity.WARNING)
def updates_rounded_away(run: RunSpec) -> Problems:
    """Weights in bf16 lose small updates.

    bf16 has 8 bits of mantissa: an update below 1/256 of a weight is rounded away, and at these rates nearly all are

    Source: Revisiting BFloat16 Training, arXiv 2010.06192, s. 3.

    Bad (prime-rl 2026-08):
        [trainer.model]
        optimization_dtype = "bfloat16"
    Good (prime-rl 2026-08):
        [trainer.model]
        optimization_dtype = "float32"
    """
    parts = prime_rl_of(run)
    trainer = parts.trainer
    if trainer is None or trainer.optimization_dtype != "bfloat16" or trainer.vision or parts.lora is not None:
        return
    if 0 < run.optim.lr < 1e-4 and trainer.optimizer in _ADAM:
        yield suggest("trainer.optimization_dtype", f'"bfloat16", at `optim.lr` {run.optim.lr:g}', "float32")


@rule("OPT007", Severity.WARNING)
def betas_swapped(run: RunSpec) -> Problems:
    """The second moment should decay more slowly than the first.

    a step is the first moment over the root of the second: a second moment that decays faster makes steps uneven

    Source: Adam, arXiv 1412.6980, s. 2.

    Bad:
        [optim]
        beta1 = 0.95
        beta2 = 0.9
    Bad (prime-rl 2026-08):
        [trainer.optim]
        betas1 = 0.99
        betas2 = 0.9
    Good:
        [optim]
        beta1 = 0.9
        beta2 = 0.95
    """
    beta1, beta2 = run.optim.beta1, run.optim.beta2
    if beta2 < beta1:
        yield Problem(
            "optim.beta2",
            f"{beta2:g} is less than `optim.beta1` {beta1:g}",
            patch={"optim.beta1": beta2, "optim.beta2": beta1},
        )


@rule("OPT008", Severity.WARNING)
def decay_that_rises(run: RunSpec) -> Problems:
    """The rate should not end above its peak.

    the decay would raise the rate

    Source: prime-rl, scheduler.min_lr.

    Bad (prime-rl 2026-08):
        [trainer.scheduler]
        type = "cosine"
        warmup_steps = 10
        min_lr = 1e-4
    Good (prime-rl 2026-08):
        [trainer.scheduler]
        type = "cosine"
        warmup_steps = 10
        min_lr = 1e-7
    """
    parts = prime_rl_of(run)
    min_lr = parts.trainer.min_lr if parts.trainer is not None else None
    if min_lr is not None and run.schedule.kind != "constant" and min_lr > run.optim.lr > 0:
        yield suggest("trainer.min_lr", f"{min_lr:g} is more than `optim.lr` {run.optim.lr:g}", 0.0)


@rule("OPT009", Severity.WARNING)
def muon_not_used(run: RunSpec) -> Problems:
    """muon_lr and muon_momentum have an effect only with Muon.

    AdamW trains all weights with optim.lr

    Source: trainer/muon.py.

    Bad:
        [optim]
        muon_lr = 0.02
    Good:
        [optim]
        kind = "muon"
        muon_lr = 0.02
    """
    optim = run.optim
    if optim.kind == "muon":
        return
    for name, default in (("muon_lr", None), ("muon_momentum", Optim().muon_momentum)):
        value = getattr(optim, name)
        if value != default:
            fix = 'take it out, or optim.kind = "muon"'
            yield unused(f"optim.{name}", f"{value:g}", '`optim.kind` is "adamw"', fix)
