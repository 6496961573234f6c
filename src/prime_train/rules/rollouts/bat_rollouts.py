"""Batches of rollouts that cannot be formed as written, or that teach nothing. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule, suggest, values_of
from prime_train.rules.training.bat_batch import make_batch_whole
from prime_train.spec import RunSpec
from prime_train.spec.answers import policy_of, prime_rl_of, rollouts_of

_USUAL_GROUP = 8
_EXAMPLES = ("num_train_examples", "num_examples", "max_examples")  # an environment's arguments for its number of tasks


@rule("BAT004", Severity.WARNING)
def group_of_one(run: RunSpec) -> Problems:
    """A group under GRPO must have more than one rollout.

    an advantage is a rollout's reward minus the mean of its group: in a group of one it is zero, and nothing is learnt

    In a run.toml it is an error: prime-rl has algorithms without groups, [rl] has none.

    Source: DeepSeekMath, arXiv 2402.03300, s. 4.1.

    Bad (prime-rl 2026-08):
        [orchestrator]
        group_size = 1
    Bad (prime-rl 2026-01):
        [orchestrator]
        rollouts_per_example = 1
    Bad (rl):
        [rl]
        group_size = 1
    Good (prime-rl 2026-08):
        [orchestrator]
        group_size = 8
    """
    parts = prime_rl_of(run)
    rollout = rollouts_of(run)
    if rollout is None or rollout.group_size != 1 or rollout.algorithm != "grpo":
        return
    sources = parts.environments.train if parts.environments is not None else None
    if sources and all((source.group_size or 1) > 1 for source in sources):
        return
    batch = rollout.batch_rollouts
    patch = {"rollout.group_size": _USUAL_GROUP} if batch is None or batch % _USUAL_GROUP == 0 else {}
    yield Problem(
        "rollout.group_size",
        "1 rollout per task: the advantage of each is zero",
        fix="" if patch else "8 or 16, a divisor of `rollout.batch_rollouts`",
        patch=patch,
        severity=Severity.ERROR if policy_of(run) is not None else None,
    )


@rule("BAT005", Severity.ERROR)
def batch_not_whole_groups(run: RunSpec) -> Problems:
    """The batch must be made of whole groups.

    a group is rewarded and trained on as a whole, so a batch cannot end with a part of one

    Source: prime-rl's validator "batch_size must be divisible by group_size"; trainer/loops/grpo.py.

    Bad (prime-rl 2026-08):
        [orchestrator]
        batch_size = 100
    Bad (prime-rl 2026-01):
        [orchestrator]
        batch_size = 100
    Bad (rl):
        [rl]
        group_size = 12
    Bad (rl):
        [batch]
        global_batch = "-"
        global_batch_tokens = 1536
        micro_batch = 6
    Good (prime-rl 2026-08):
        [orchestrator]
        batch_size = 96
    """
    rollout = rollouts_of(run)
    if rollout is None or rollout.batch_rollouts is None or not rollout.group_size:
        return
    if rollout.batch_rollouts % rollout.group_size == 0:
        return
    what = f"{rollout.batch_rollouts} rollouts do not divide by `rollout.group_size` {rollout.group_size}"
    if policy_of(run) is not None:
        patch = make_batch_whole(run)
        yield Problem(next(iter(patch)), what, patch=patch)
    else:
        whole = max(1, round(rollout.batch_rollouts / rollout.group_size)) * rollout.group_size
        yield suggest("rollout.batch_rollouts", what, whole)


@rule("BAT006", Severity.ERROR)
def rollout_batch_given_twice(run: RunSpec) -> Problems:
    """A batch is counted in rollouts or in tokens, not in both.

    a step ends at one of the two, and prime-rl refuses to choose

    Source: prime-rl's validator on batch_size and token_batch_size.

    Bad (prime-rl 2026-08):
        [orchestrator]
        token_batch_size = 262144
    Good (prime-rl 2026-08):
        [orchestrator]
        batch_size = "-"
        token_batch_size = 262144
    """
    if both := values_of(run, "rollout.batch_tokens", "rollout.batch_rollouts"):
        what = f"{both[0]} tokens beside `rollout.batch_rollouts` {both[1]}"
        yield suggest("rollout.batch_tokens", what, None, fix="take one of the two out")


@rule("BAT007", Severity.NOTE)
def batch_of_one_group(run: RunSpec) -> Problems:
    """A batch of a single group is a step on a single task.

    if all rollouts of the task succeed, or all fail, the step has no gradient

    Source: GRPO, arXiv 2402.03300, s. 4.1 (a group is the samples of one question).

    Bad (prime-rl 2026-08):
        [orchestrator]
        batch_size = 16
    Good (prime-rl 2026-08):
        [orchestrator]
        batch_size = 64
    """
    batch, group = values_of(run, "rollouts.batch_rollouts", "rollouts.group_size") or (0, 0)
    if batch == group >= 2:
        what = f"{batch} rollouts are one group of `rollout.group_size` {group}"
        yield suggest("rollout.batch_rollouts", what, 4 * group)


@rule("BAT008", Severity.ERROR)
def concurrency_out_of_order(run: RunSpec) -> Problems:
    """The minimum and the initial number of rollouts in flight must not exceed the maximum.

    prime-rl refuses bounds that no number can satisfy

    Source: prime-rl's validator on [orchestrator.concurrency].

    Bad (prime-rl 2026-08):
        [orchestrator.concurrency]
        initial_inflight = 512
        max_inflight = 256
    Bad (prime-rl 2026-08):
        [orchestrator.concurrency]
        min_inflight = 512
        max_inflight = 256
    Good (prime-rl 2026-08):
        [orchestrator.concurrency]
        initial_inflight = 128
        max_inflight = 256
    """
    rollout = prime_rl_of(run).rollout
    if rollout is None or rollout.max_inflight is None:
        return
    for name in ("initial_inflight", "min_inflight"):
        value: int | None = getattr(rollout, name)
        if value is not None and value > rollout.max_inflight:
            yield suggest(
                f"rollout.{name}",
                f"{value} rollouts are more than `rollout.max_inflight` {rollout.max_inflight}",
                rollout.max_inflight,
            )


@rule("BAT009", Severity.ERROR)
def fewer_in_flight_than_a_group(run: RunSpec) -> Problems:
    """Rollouts in flight must be at least one group.

    a group is rolled out together: prime-rl refuses a smaller bound, and the bundled trainer is slow with it

    Source: prime-rl, orchestrator.concurrency (max_inflight_rollouts until 2026-05) against group_size.

    Bad (prime-rl 2026-08):
        [orchestrator.concurrency]
        max_inflight = 4
    Good (prime-rl 2026-08):
        [orchestrator.concurrency]
        max_inflight = 128
    """
    rollout = rollouts_of(run)
    most, group = values_of(run, "rollouts.max_inflight", "rollouts.group_size") or (0, 0)
    if rollout is not None and most < group:
        what = f"{most} rollouts are fewer than `rollout.group_size` {group}"
        severity = Severity.ERROR if run.prime_rl is not None else Severity.WARNING
        yield suggest("rollout.max_inflight", what, rollout.batch_rollouts or group, severity=severity)


@rule("BAT013", Severity.WARNING)
def always_on_policy(run: RunSpec) -> Problems:
    """max_off_policy_steps = 0 throws away every rollout that a new policy overtakes.

    weights change while rollouts run: all rollouts that began before the change are cancelled, even if nearly complete

    Source: prime-rl, orchestrator.max_off_policy_steps.

    Bad (prime-rl 2026-08):
        [orchestrator]
        max_off_policy_steps = 0
    Good (prime-rl 2026-08):
        [orchestrator]
        max_off_policy_steps = 8
    """
    rollout = prime_rl_of(run).rollout
    if rollout is not None and rollout.max_off_policy_steps == 0:
        yield suggest("rollout.max_off_policy_steps", "0: a rollout that a weight update overtakes is discarded", 8)


@rule("BAT014", Severity.WARNING)
def batch_beyond_the_tasks(run: RunSpec) -> Problems:
    """A batch should not need more tasks than the environment has.

    tasks repeat within one step: the batch is larger, but its gradient has no more information

    Judged if the environment's arguments set how many tasks it loads.

    Source: prime-rl, batch_size / group_size tasks in a step.

    Bad (prime-rl 2026-01):
        [[orchestrator.env]]
        id = "reverse-text"
        args = {num_train_examples = 4}
    Bad (prime-rl 2026-05):
        [[orchestrator.train.env]]
        id = "reverse-text"
        args = {num_train_examples = 4}
    Good (prime-rl 2026-01):
        [[orchestrator.env]]
        id = "reverse-text"
        args = {num_train_examples = 1000}
    """
    parts = prime_rl_of(run)
    rollout = parts.rollout
    sources = (parts.environments.train if parts.environments is not None else None) or ()
    if rollout is None or not rollout.batch_rollouts or not rollout.group_size or len(sources) != 1:
        return
    needed = rollout.batch_rollouts // rollout.group_size
    for name in _EXAMPLES:
        tasks = (sources[0].args or {}).get(name)
        if isinstance(tasks, int) and 0 < tasks < needed:
            yield Problem(
                f"environments.train.0.args.{name}",
                f"{tasks} tasks, and a batch takes `rollout.batch_rollouts` {rollout.batch_rollouts} / "
                f"`rollout.group_size` {rollout.group_size} = {needed}",
                fix=f"load more tasks, or `rollout.batch_rollouts` = {tasks * rollout.group_size}",
            )
