"""How the machines of a run reach each other. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.core.machine_secret import find_fault
from prime_train.core.machines import SECRET, Machines
from prime_train.rules.rule import Problems, facts_rule, known
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts


@facts_rule("MCH001", Severity.ERROR, needs=("machines",))
def machines_without_a_secret(run: RunSpec, facts: Facts) -> Problems:
    """Machines beyond loopback must share a secret that cannot be guessed.

    any host that reaches the port of machine 0 could join the run, hear it and end it

    It is judged where the environment names the machines: PRIME_TRAIN_MACHINE_ADDRESSES, srun or SkyPilot. `run` also
    refuses to start with such addresses in its options. `--spot` and `--slurm` make a secret for each job.

    Source: bus/shared_secret.py (passwords and certificate of the bus are made from the secret).

    Bad:
        [parallel]
        processes = 2
        machines = 2
        [facts.machines]
        addresses = ["10.0.0.1", "10.0.0.2"]
        port = 29400
        weakness = "it is not set"
    Good:
        [parallel]
        processes = 2
        machines = 2
        [facts.machines]
        addresses = ["10.0.0.1", "10.0.0.2"]
        port = 29400
    Good:
        [parallel]
        processes = 2
        machines = 2
        [facts.machines]
        addresses = ["127.0.0.1", "127.0.0.2"]
        port = 29400
        weakness = "it is not set"
    """
    link = known(facts.machines)
    if link is None or run.parallel.machines < 2:
        return
    fault = find_fault(Machines(link.rank, link.addresses, link.port), link.weakness, link.launcher)
    if fault is not None:
        yield Problem("parallel.machines", f"{SECRET}: {fault.what}", fix=fault.fix)
