"""Evaluations that are never made, or that cost more than they show. Pure."""

from __future__ import annotations

from prime_train.core.findings import Severity
from prime_train.rules.rule import Problems, must_not_come_after_the_end, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

_EVERY_FEW_STEPS = 2


@rule("EVA001", Severity.NOTE)
def no_evaluation_on_the_way(run: RunSpec) -> Problems:
    """eval.interval_steps beyond max_steps leaves only the evaluation at the end.

    a loss that stops falling is then noticed only after the run

    Source: trainer/loops/pretrain.py (an evaluation at each multiple of the interval, and one at the end).

    Bad:
        [eval]
        interval_steps = 2000
    Good:
        [eval]
        interval_steps = 500
    """
    interval = run.eval.interval_steps
    yield from must_not_come_after_the_end("eval.interval_steps", "evaluation", interval, run.run.max_steps)


@rule("EVA002", Severity.WARNING)
def evaluation_costs_more_than_training(run: RunSpec) -> Problems:
    """Evaluation should not sample more than training does.

    the same GPUs sample both: beyond that point most of the run is spent on evaluation

    Source: prime-rl, num_examples x group_size per environment against batch_size x interval.

    Bad (prime-rl 2026-08):
        [orchestrator.eval]
        source = [{name = "held-out", env = {taskset = {id = "reverse-text"}}}]
        interval = 5
        num_examples = 500
        group_size = 4
    Good (prime-rl 2026-08):
        [orchestrator.eval]
        source = [{name = "held-out", env = {taskset = {id = "reverse-text"}}}]
        interval = 50
        num_examples = 100
        group_size = 4
    """
    parts = prime_rl_of(run)
    evaluation, rollout, environments = parts.evaluation, parts.rollout, parts.environments
    if evaluation is None or rollout is None or environments is None or not rollout.batch_rollouts:
        return
    interval = evaluation.interval_steps
    if interval is None or interval > run.run.max_steps:
        return
    evaluated = 0
    for source in environments.evaluate or ():
        examples = source.examples if source.examples is not None else evaluation.examples
        group = source.group_size or evaluation.group_size or 1
        evaluated += max(0, examples or 0) * group
    trained = rollout.batch_rollouts * interval
    if evaluated > trained:
        needed = -(-evaluated // rollout.batch_rollouts)
        yield suggest(
            "evaluation.interval_steps",
            f"{evaluated} rollouts of evaluation for every {trained} of training ({interval} steps of "
            f"`rollout.batch_rollouts` {rollout.batch_rollouts})",
            -(-4 * needed // 5) * 5,
        )


@rule("EVA005", Severity.WARNING)
def everything_at_every_step(run: RunSpec) -> Problems:
    """The whole held-out data should not be sampled at every step.

    the same GPUs sample training and evaluation: most of the run is spent on evaluation

    Source: prime-rl, orchestrator.eval.interval and num_examples = -1, all tasks.

    Bad (prime-rl 2026-08):
        [orchestrator.eval]
        source = [{name = "held-out", env = {taskset = {id = "reverse-text"}}}]
        interval = 1
        num_examples = -1
    Good (prime-rl 2026-08):
        [orchestrator.eval]
        source = [{name = "held-out", env = {taskset = {id = "reverse-text"}}}]
        interval = 50
        num_examples = -1
    """
    parts = prime_rl_of(run)
    evaluation = parts.evaluation
    sources = (parts.environments.evaluate if parts.environments is not None else None) or ()
    if evaluation is None or evaluation.interval_steps is None or evaluation.interval_steps > _EVERY_FEW_STEPS:
        return
    counts = [source.examples if source.examples is not None else evaluation.examples for source in sources]
    if any(count is None or count < 0 for count in counts):
        steps = "every step" if evaluation.interval_steps == 1 else f"every {evaluation.interval_steps} steps"
        yield suggest("evaluation.interval_steps", f"all tasks are sampled {steps}", 50)


@rule("EVA003", Severity.NOTE)
def no_online_evaluation_on_the_way(run: RunSpec) -> Problems:
    """An evaluation interval beyond max_steps means no evaluation during the run.

    a policy that gets worse is then noticed only after the run

    Source: prime-rl, orchestrator.eval.interval.

    Bad (prime-rl 2026-08):
        [orchestrator.eval]
        source = [{name = "held-out", env = {taskset = {id = "reverse-text"}}}]
        interval = 500
        num_examples = 100
        group_size = 1
    Good (prime-rl 2026-08):
        [orchestrator.eval]
        source = [{name = "held-out", env = {taskset = {id = "reverse-text"}}}]
        interval = 50
        num_examples = 100
        group_size = 1
    """
    parts = prime_rl_of(run)
    if parts.evaluation is not None:
        interval = parts.evaluation.interval_steps
        yield from must_not_come_after_the_end("evaluation.interval_steps", "evaluation", interval, run.run.max_steps)


@rule("EVA004", Severity.WARNING)
def same_answer_many_times(run: RunSpec) -> Problems:
    """At temperature 0 one sample per task is enough.

    greedy sampling gives the same completion each time: further samples cost time and add nothing

    Source: vLLM, SamplingParams (temperature 0 is greedy sampling).

    Bad (prime-rl 2026-08):
        [orchestrator.eval]
        source = [{name = "held-out", env = {taskset = {id = "reverse-text"}}}]
        interval = 50
        num_examples = 100
        group_size = 8
        [orchestrator.eval.sampling]
        temperature = 0.0
    Good (prime-rl 2026-08):
        [orchestrator.eval]
        source = [{name = "held-out", env = {taskset = {id = "reverse-text"}}}]
        interval = 50
        num_examples = 100
        group_size = 1
        [orchestrator.eval.sampling]
        temperature = 0.0
    """
    evaluation = prime_rl_of(run).evaluation
    if evaluation is None or evaluation.temperature != 0 or (evaluation.group_size or 1) < 2:
        return
    yield suggest(
        "evaluation.group_size", f"{evaluation.group_size} samples per task, and `evaluation.temperature` is 0", 1
    )


@rule("EVA011", Severity.WARNING)
def length_of_no_answer(run: RunSpec) -> Problems:
    """eval.task_tokens needs [[tasks]].

    it limits the answers to held-out tasks: without tasks there are none

    Source: trainer/rl/rollouts/evaluate_tasks.py.

    Bad:
        [eval]
        task_tokens = 128
    Good:
        [eval]
        task_tokens = 128
        [[tasks]]
        kind = "reverse-text"
    """
    if run.eval.task_tokens is not None and not run.tasks:
        yield suggest("eval.task_tokens", "the config has no [[tasks]]", None, fix="take it out, or add [[tasks]]")
