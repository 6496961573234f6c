"""Settings of [rl] that leave nothing to learn, or that have no effect. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch, hands_over_weights, policy_of

_OF_EVALUATION = ("answer_tokens", "rollout_limit_s", "max_failed_ratio")  # fields that each kind of run uses
_OF_SERVER = ("concurrency", "handover")
_LETTERS_PER_TOKEN = 4  # more of a random text is rarely in one token of a byte-level BPE
_ARGUMENTS_OF_LENGTH = {"reverse-text": "max_letters", "sort-digits": "max_digits"}


@rule("POL001", Severity.WARNING)
def policy_without_rewards(run: RunSpec) -> Problems:
    """[rl] has an effect only in a run of kind `rl`.

    a run of another kind makes no rollouts: it trains on text, as if the table were not there

    The evaluation of [[tasks]] in such a run uses the limits of an answer: answer_tokens, rollout_limit_s and
    max_failed_ratio; with a vLLM server also concurrency and handover.

    Source: trainer/__main__.py (each kind of run has its own loop), trainer/rl/rollouts/task_targets.py.

    Bad:
        [rl]
        group_size = 16
    Bad:
        [rl]
        handover = "disk"
        [[tasks]]
        kind = "reverse-text"
    Good (rl):
        [rl]
        group_size = 16
    """
    if run.rl is None or policy_of(run) is not None:
        return
    kind = f'`run.kind` is "{run.run.kind}"'
    if not run.tasks:
        yield Problem("rl", f"[rl] is not used: {kind}", fix='run.kind = "rl", or take [rl] out')
        return
    used = {*_OF_EVALUATION, *(_OF_SERVER if hands_over_weights(run) else ())}
    usual = type(run.rl)()
    for name in run.rl.__dataclass_fields__:
        if name not in used and getattr(run.rl, name) != getattr(usual, name):
            yield suggest(f"rl.{name}", f"it is not used: {kind}", None, fix="take it out")


@rule("POL002", Severity.WARNING)
def rewards_of_random_weights(run: RunSpec) -> Problems:
    """A model with random weights needs warm-up steps before it can earn a reward.

    random tokens almost never solve a task: all rewards of a group are equal, and no advantage differs from zero

    Source: DeepSeekMath, arXiv 2402.03300, s. 4.1 (the advantage of a group with equal rewards is zero).

    Bad (rl):
        [rl]
        warmup_steps = 0
    Good (rl):
        [rl]
        warmup_steps = 40
    """
    policy = policy_of(run)
    if policy is not None and not run.model.starts_trained and policy.warmup_steps == 0:
        yield suggest(
            "rl.warmup_steps",
            "0, and the model starts with random weights",
            max(1, run.run.max_steps // 10),
            fix="`rl.warmup_steps` = 40 for tasks that can be shown solved, or the folder of a trained model in "
            "`model.path`",
        )


@rule("POL003", Severity.WARNING)
def warmup_fills_the_run(run: RunSpec) -> Problems:
    """The warm-up must end before the run does.

    warm-up steps imitate solved tasks: a run of nothing else never learns from a reward

    Source: trainer/loops/grpo.py.

    Bad (rl):
        [rl]
        warmup_steps = 400
    Good (rl):
        [rl]
        warmup_steps = 100
    """
    policy, max_steps = policy_of(run), run.run.max_steps
    if policy is not None and policy.warmup_steps >= max_steps:
        what = f"{policy.warmup_steps} steps fill all of `run.max_steps` {max_steps}"
        yield suggest("rl.warmup_steps", what, max(1, max_steps // 10))


@rule("POL004", Severity.ERROR)
def warmup_without_demonstrations(run: RunSpec) -> Problems:
    """Warm-up steps need tasks that an environment can show solved.

    a warm-up imitates solutions, and a taskset of verifiers has none to show

    Source: environments/environment.py, Environment.demonstrate.

    Bad (rl):
        [rl]
        warmup_steps = 10
        [model]
        path = "models/mine"
        [tokenizer]
        path = "models/mine"
        [optim]
        lr = 1e-6
        [[tasks]]
        kind = "verifiers"
        id = "gsm8k"
    Good (rl):
        [rl]
        warmup_steps = 0
        [model]
        path = "models/mine"
        [tokenizer]
        path = "models/mine"
        [optim]
        lr = 1e-6
        [[tasks]]
        kind = "verifiers"
        id = "gsm8k"
    """
    policy = policy_of(run)
    if policy is not None and policy.warmup_steps and all(task.kind == "verifiers" for task in run.tasks):
        yield suggest("rl.warmup_steps", f"{policy.warmup_steps} steps, and no task can be shown solved", 0)


@rule("POL005", Severity.WARNING)
def divergence_outweighs_rewards(run: RunSpec) -> Problems:
    """The divergence from the reference should weigh less than the rewards.

    advantages are about 1: a larger weight pulls the model back to its start, and no reward moves it

    Source: DeepSeekMath, arXiv 2402.03300, s. 4.2 (a coefficient of 0.04).

    Bad (rl):
        [rl]
        kl_coef = 50.0
    Good (rl):
        [rl]
        kl_coef = 0.04
    """
    policy = policy_of(run)
    if policy is not None and policy.kl_coef > 1:
        yield suggest("rl.kl_coef", f"{policy.kl_coef:g} times the divergence", 0.04)


@rule("POL006", Severity.NOTE)
def concurrency_never_reached(run: RunSpec) -> Problems:
    """Rollouts in progress cannot be more than the steps ahead can use.

    a rollout that starts too early lacks more updates than max_behind_steps allows, so it waits to be started

    Source: trainer/rl/rollouts/rollout_queue.py.

    Bad (rl):
        [rl]
        concurrency = 512
    Good (rl):
        [rl]
        concurrency = 128
    """
    policy = policy_of(run)
    if policy is None or policy.concurrency == type(policy)().concurrency:
        return
    usable = (1 + policy.max_behind_steps) * global_batch(run)
    if policy.concurrency > usable:
        yield suggest(
            "rl.concurrency",
            f"{policy.concurrency}, and (1 + `rl.max_behind_steps` {policy.max_behind_steps}) x `batch.global_batch` "
            f"{global_batch(run)} = {usable} rollouts can be used",
            usable,
        )


@rule("POL007", Severity.WARNING)
def every_answer_is_cut_off(run: RunSpec) -> Problems:
    """answer_tokens must have room for the longest answer of the tasks.

    an answer that is cut off is masked, so the longest tasks teach nothing, and none of them is ever solved

    Judged for the built-in tasks, at four letters per token.

    Source: environments/arguments.py (the lengths of the tasks).

    Bad (rl):
        [rl]
        answer_tokens = 4
        [[tasks]]
        kind = "reverse-text"
        arguments = {max_letters = 40}
    Good (rl):
        [rl]
        answer_tokens = 64
        [[tasks]]
        kind = "reverse-text"
        arguments = {max_letters = 40}
    """
    policy = policy_of(run)
    if policy is None:
        return
    for source in run.tasks:
        letters = (source.arguments or {}).get(_ARGUMENTS_OF_LENGTH.get(source.kind, ""))
        if not isinstance(letters, int) or policy.answer_tokens > letters // _LETTERS_PER_TOKEN:
            continue
        masked = ", and rl.mask_truncated leaves them out of the loss" if policy.mask_truncated else ""
        yield suggest(
            "rl.answer_tokens",
            f"{policy.answer_tokens} tokens cut off answers of {letters} letters ({source.kind}){masked}",
            letters + 8,
        )
        return
