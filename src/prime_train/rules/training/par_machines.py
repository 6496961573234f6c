"""A run on several machines: which kinds can use them, and how the processes are divided. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import policy_of


@rule("PAR012", Severity.ERROR)
def machines_do_not_divide_processes(run: RunSpec) -> Problems:
    """Every machine must have the same number of processes.

    ranks are counted by machine, and a machine with fewer would leave ranks without a process

    Source: trainer/ranks.py (rank = machine x processes of a machine + local rank).

    Bad:
        [parallel]
        processes = 3
        machines = 2
    Good:
        [parallel]
        processes = 4
        machines = 2
    """
    layout = run.parallel
    if layout.processes % layout.machines:
        yield suggest(
            "parallel.processes",
            f"`parallel.processes` {layout.processes} do not divide by `parallel.machines` {layout.machines}",
            max(1, layout.processes // layout.machines) * layout.machines,
        )


@rule("PAR013", Severity.ERROR)
def kind_needs_one_machine(run: RunSpec) -> Problems:
    """A run with an engine, or one that serves, has one machine.

    its engine and its environments are on loopback beside rank 0, and answer no other machine

    Source: trainer/loops/grpo.py (rank 0 owns the engine), programs/vllm (a server on 127.0.0.1).

    Bad:
        [run]
        kind = "rl"
        [[tasks]]
        kind = "reverse-text"
        [rl]
        warmup_steps = 40
        [parallel]
        processes = 2
        machines = 2
    Good:
        [run]
        kind = "pretrain"
        [parallel]
        processes = 2
        machines = 2
    """
    if run.parallel.machines > 1 and (policy_of(run) is not None or run.inference is not None):
        yield Problem(
            "parallel.machines",
            f'`parallel.machines` {run.parallel.machines}, and run.kind = "{run.run.kind}" has an engine',
            "parallel.machines = 1, with `parallel.processes` of one machine",
            {"parallel.machines": 1},
        )
