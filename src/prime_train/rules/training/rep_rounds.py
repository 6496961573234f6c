"""Replicas that make some steps alone before they join their weights, and what that does not go with. Pure."""

from __future__ import annotations

from prime_train.core.findings import Severity
from prime_train.rules.rule import Problems, rule, suggest, unused
from prime_train.spec import Parallel, RunSpec
from prime_train.spec.answers import fewest_sequences


@rule("REP008", Severity.ERROR)
def rounds_do_not_go_with(run: RunSpec) -> Problems:
    """With `sync_every` a replica is one process, the batch stays the same, and each replica has a row in each step.

    a replica makes every step of a round alone, on rows of its own, and takes the mean of whole weights at the end

    Source: trainer/loops/local_steps.py.

    Bad:
        [parallel]
        processes = 4
        replicas = 2
        sync_every = 10
    Bad:
        [parallel]
        processes = 2
        replicas = 2
        sync_every = 10
        [batch]
        with_replicas = "sqrt"
    Bad:
        [parallel]
        processes = 4
        replicas = 4
        sync_every = 10
        [batch]
        global_batch = 3
    Bad:
        [parallel]
        processes = 4
        replicas = 4
        sync_every = 10
        [batch]
        global_batch = 66
        start_batch = 2
        ramp_steps = 100
    Good:
        [parallel]
        processes = 4
        replicas = 4
        sync_every = 10
        [batch]
        global_batch = 64
    """
    layout, replicas = run.parallel, run.parallel.replicas
    if not replicas or not layout.sync_every or run.format != "run.toml":
        return
    if layout.group_processes > 1:
        what = f"{replicas}, and with `parallel.sync_every` each would have {layout.group_processes} processes"
        yield suggest("parallel.replicas", what, layout.processes)
    if run.batch.with_replicas != "constant":
        what = f'"{run.batch.with_replicas}", and `parallel.sync_every` is {layout.sync_every}'
        yield suggest("batch.with_replicas", what, "constant")
    fewest = fewest_sequences(run)
    if fewest < replicas:
        key = "batch.global_batch" if run.batch.start_batch is None else "batch.start_batch"
        yield suggest(key, f"a step has {fewest} sequences, and {replicas} replicas take a part of it each", replicas)


@rule("REP009", Severity.WARNING)
def rounds_and_intervals(run: RunSpec) -> Problems:
    """A round fits into the run, intervals are multiples of `sync_every`, and the outer optimizer is that of `diloco`.

    all replicas have the same weights only at the end of a round, so what is due in one waits for it

    Source: trainer/replicas/round_plan.py; the outer optimizer: DiLoCo, arXiv 2311.08105, s. 3.

    Bad:
        [run]
        max_steps = 100
        [parallel]
        processes = 2
        replicas = 2
        sync_every = 500
    Bad:
        [parallel]
        processes = 2
        replicas = 2
        sync_every = 30
        [checkpoint]
        interval_steps = 100
    Bad:
        [parallel]
        processes = 2
        replicas = 2
        sync_every = 30
        outer_lr = 0.5
    Good:
        [parallel]
        processes = 2
        replicas = 2
        sync_every = 20
        sync = "diloco"
        outer_lr = 0.5
        [checkpoint]
        interval_steps = 100
    """
    layout = run.parallel
    if layout.sync != "diloco":
        for key, value in (("outer_lr", layout.outer_lr), ("outer_momentum", layout.outer_momentum)):
            if value != getattr(Parallel(), key):
                yield unused(f"parallel.{key}", value, f'`parallel.sync` is "{layout.sync}"')
    if not layout.replicas or not layout.sync_every:
        return
    if layout.sync_every > run.run.max_steps:
        what = f"{layout.sync_every} steps, and the run has {run.run.max_steps}: the weights are joined once"
        yield suggest("parallel.sync_every", what, max(1, run.run.max_steps // 10))
        return
    intervals = {"checkpoint": run.checkpoint.interval_steps, "eval": run.eval.interval_steps}
    for table, interval in intervals.items():
        if interval is not None and interval % layout.sync_every:
            nearest = max(1, round(interval / layout.sync_every)) * layout.sync_every
            what = f"{interval} steps, no multiple of `parallel.sync_every` {layout.sync_every}"
            yield suggest(f"{table}.interval_steps", what, nearest)
