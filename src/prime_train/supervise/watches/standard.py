"""Creates the watches that a config asks for.

A watch is a module `watches/KEY.py` or `watches/KEY/watch.py` with a function `create`, and the key KEY of
`[prime_train.watch]`. A key without such a module belongs to a program, which creates its own watches.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec

from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.supervise.core.policy import Policy
from prime_train.supervise.launch.program import Program
from prime_train.supervise.watches.context import Context
from prime_train.supervise.watches.watch import Watch, Watches


def create_watches(run: RunSpec, run_dir: RunDir, program: Program, policy: Policy) -> Watches:
    """One watch for each key that is not off, and the watches of the program."""
    context = Context(run, run_dir, program, policy)
    answers = asdict(run.prime_train.watch)
    found = {key: _create(key, context) for key, answer in answers.items() if answer != "off"}
    gpu, disk = found.pop("gpu", None), found.pop("disk", None)
    own = (watch for watch in found.values() if watch is not None)
    return Watches(gpu, disk, (*program.watches(run, run_dir), *own))  # type: ignore[arg-type]


def _create(key: str, context: Context) -> Watch | None:
    name = f"{__package__}.{key}"
    spec = find_spec(name)
    if spec is None:
        return None
    module = import_module(f"{name}.watch" if spec.submodule_search_locations else name)
    watch: Watch | None = module.create(context)
    return watch
