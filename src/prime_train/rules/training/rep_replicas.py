"""Groups of processes that outlive each other, and what they do not go with. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.core.installation import install_command
from prime_train.rules.rule import Problems, facts_rule, known, must_be_installed, rule, suggest, unused
from prime_train.spec import Batch, RunSpec
from prime_train.spec.answers import global_batch

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts


@rule("REP001", Severity.ERROR)
def replicas_do_not_divide(run: RunSpec) -> Problems:
    """`replicas` must divide `processes`, be divided by `machines`, and be no less than `min_replicas`.

    every replica has the same number of processes on one machine, and a step waits until as many replicas are there

    Source: trainer/replicas/launcher.py (the replicas of a machine follow each other by number); torchft, Manager
    (min_replica_size).

    Bad:
        [parallel]
        processes = 4
        replicas = 3
    Bad:
        [parallel]
        processes = 2
        replicas = 2
        min_replicas = 3
    Bad:
        [parallel]
        processes = 6
        replicas = 3
        machines = 2
    Good:
        [parallel]
        processes = 8
        replicas = 4
        machines = 2
    """
    layout = run.parallel
    if not layout.replicas:
        return
    if layout.processes % layout.replicas:
        yield suggest(
            "parallel.replicas",
            f"`parallel.processes` {layout.processes} do not divide by {layout.replicas}",
            layout.processes,
        )
    elif layout.replicas % layout.machines:
        what = f"{layout.replicas} replicas do not divide by `parallel.machines` {layout.machines}"
        nearest = max(1, layout.replicas // layout.machines) * layout.machines
        yield suggest("parallel.replicas", what, nearest, why="a replica is whole on one machine, which has as many")
    if layout.min_replicas > layout.replicas:
        what = f"{layout.min_replicas} replicas are awaited, and `parallel.replicas` is {layout.replicas}"
        yield suggest("parallel.min_replicas", what, layout.replicas, why="no step would ever be made")


@rule("REP002", Severity.ERROR)
def settings_of_replicas_alone(run: RunSpec) -> Problems:
    """`min_replicas`, `sync_every`, `sync` and `with_replicas` need `replicas`.

    without replicas nothing reads them, and all processes end together

    `sync` alone decides nothing without `sync_every`.

    Source: programs/bundled.

    Bad:
        [parallel]
        processes = 4
        min_replicas = 2
    Bad:
        [parallel]
        processes = 4
        sync_every = 10
    Good:
        [parallel]
        processes = 4
        replicas = 4
        min_replicas = 2
    """
    layout = run.parallel
    given = {
        "parallel.min_replicas": layout.min_replicas if layout.min_replicas != 1 else None,
        "parallel.sync_every": layout.sync_every or None,
        "batch.with_replicas": run.batch.with_replicas if run.batch.with_replicas != "constant" else None,
    }
    for key, value in given.items():
        if value is not None and not layout.replicas:
            what = f"{value!r}, and `parallel.replicas` is 0"
            yield suggest(key, what, None, fix="set `parallel.replicas`, or take it out")
    if layout.sync != "local_sgd" and not layout.sync_every:
        yield suggest("parallel.sync", f'"{layout.sync}", and `parallel.sync_every` is 0', None)


@rule("REP003", Severity.ERROR)
def replicas_do_not_go_with(run: RunSpec) -> Problems:
    """Replicas train on text or chats, without an engine.

    an engine, environments and clips belong to rank 0 of the run, and every replica has a rank 0 of its own

    Source: trainer/loops/grpo.py (rank 0 owns the engine), programs/bundled.

    Bad (rl):
        [[tasks]]
        kind = "reverse-text"
        [rl]
        warmup_steps = 40
        [parallel]
        processes = 2
        replicas = 2
    Good:
        [parallel]
        processes = 2
        replicas = 2
        machines = 2
    """
    layout = run.parallel
    if not layout.replicas or run.format != "run.toml":
        return
    if run.run.kind not in ("pretrain", "sft"):
        yield suggest("parallel.replicas", f'{layout.replicas}, and `run.kind` is "{run.run.kind}"', 0)
    elif run.server is not None or run.tasks:
        has = "[inference]" if run.server is not None else "[[tasks]]"
        yield suggest("parallel.replicas", f"{layout.replicas}, and the config has {has}", 0)


@rule("REP004", Severity.ERROR)
def replicas_of_a_later_version(run: RunSpec) -> Problems:
    """Experts are not built yet in replicas.

    the router counts the tokens of all experts over the ranks of one replica alone

    Source: trainer/replicas.

    Bad:
        [parallel]
        processes = 2
        replicas = 2
        [model]
        experts = 8
    Good:
        [parallel]
        processes = 4
        replicas = 2
        dp_shard = 2
    """
    if run.parallel.replicas and run.model.experts:
        yield suggest("parallel.replicas", f"{run.parallel.replicas}, and `model.experts` is {run.model.experts}", 0)


@facts_rule("REP005", Severity.ERROR, needs=("part_packages",))
def torchft_not_installed(_run: RunSpec, facts: Facts) -> Problems:
    """Replicas need the `replicas` extra in the interpreter of the trainer.

    every replica ends at the import, before its first step

    Source: trainer/replicas.

    Bad:
        [parallel]
        processes = 2
        replicas = 2
        [[facts.part_packages]]
        field = "parallel.replicas"
        package = "torchft"
        python = "/venv/bin/python"
        fault = "it is not installed"
    Good:
        [parallel]
        processes = 2
        replicas = 2
        [[facts.part_packages]]
        field = "parallel.replicas"
        package = "torchft"
        python = "/venv/bin/python"
    """
    yield from must_be_installed(facts, "parallel.replicas", lambda _: install_command("replicas"))


@facts_rule("REP006", Severity.ERROR, needs=("interpreter",))
def torchft_with_this_torch(run: RunSpec, facts: Facts) -> Problems:
    """The installed torchft must work with the installed torch.

    the two share classes of torch that are no part of what it promises, so a pair works where it was tried

    A pair that was never tried is a warning.

    Source: registry/torchft.toml, each entry with its own source.

    Bad:
        [parallel]
        processes = 2
        replicas = 2
        [facts.interpreter]
        versions = [["torch", "2.13.0+cpu"], ["torchft", "0.1.1"]]
    Bad:
        [parallel]
        processes = 2
        replicas = 2
        [facts.interpreter]
        versions = [["torch", "2.19.0"], ["torchft", "0.2.0"]]
    Good:
        [parallel]
        processes = 2
        replicas = 2
        [facts.interpreter]
        versions = [["torch", "2.13.0+cpu"], ["torchft", "0.2.0"]]
    """
    from packaging.specifiers import SpecifierSet

    from prime_train.registry.gpus import read_table

    versions = dict(known(facts.interpreter).versions)
    name = next((each for each in ("torchft", "torchft-nightly") if each in versions), "")
    if not run.parallel.replicas or not name or "torch" not in versions:
        return
    pair = f"{name} {versions[name]} with torch {versions['torch']}"
    for entry in read_table("torchft.toml")["known"]:
        meant = ((entry["versions"], versions[name]), (entry["torch"], versions["torch"]))
        if name == entry["package"] and all(SpecifierSet(one).contains(each, prereleases=True) for one, each in meant):
            if not entry["works"]:
                yield Problem(
                    "parallel.replicas", f"{pair} does not work", install_command("replicas"), why=entry["why"]
                )
            return
    yield Problem(
        "parallel.replicas",
        f"whether {pair} works is not known",
        "try it in a short run: end a replica by hand, and see whether the others go on",
        severity=Severity.WARNING,
    )


@rule("REP007", Severity.ERROR)
def batch_that_follows_replicas(run: RunSpec) -> Problems:
    """A batch that follows the replicas must divide by them, and `rate_ramp_steps` needs a rate that follows.

    each replica has the same rows whether the others are there or not, so the rate follows by an exact ratio

    Source: trainer/replicas/scaling.py.

    Bad:
        [parallel]
        processes = 3
        replicas = 3
        [batch]
        global_batch = 64
        with_replicas = "sqrt"
    Bad:
        [batch]
        rate_ramp_steps = 500
    Good:
        [parallel]
        processes = 4
        replicas = 4
        [batch]
        global_batch = 64
        with_replicas = "sqrt"
        rate_ramp_steps = 500
    """
    batch, replicas = run.batch, run.parallel.replicas
    if batch.rate_ramp_steps != Batch().rate_ramp_steps and batch.with_replicas not in ("linear", "sqrt"):
        yield unused(
            "batch.rate_ramp_steps", batch.rate_ramp_steps, f'`batch.with_replicas` is "{batch.with_replicas}"'
        )
    if not replicas or batch.with_replicas == "constant" or run.parallel.processes % replicas:
        return
    sequences = global_batch(run)
    if sequences % replicas:
        in_tokens = batch.global_batch is None and batch.global_batch_tokens is not None
        key, unit = ("batch.global_batch_tokens", run.data.ctx_tokens) if in_tokens else ("batch.global_batch", 1)
        nearest = max(1, round(sequences / replicas)) * replicas * unit
        yield suggest(key, f"{sequences} sequences do not divide by `parallel.replicas` {replicas}", nearest)
