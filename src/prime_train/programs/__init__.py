"""The external programs that train or serve, one folder or file each. The core uses only the `Program` protocol.

A program is a package or a module here with a value PROGRAM, most easily a subclass from `base`, and a name in
`spec.ProgramName`; the tests run an example, `torchtitan`. The command line chooses the program of a run once and hands
it on; no other package names a program. Programs do not import each other, except that the bundled trainer starts a
vLLM server where the run has `[inference]`.

What decides the data order, or the shape and meaning of the weights, must not change on resume (`fixed_settings` lists
it); every other key may. Before the first checkpoint everything may change, so a run that failed on a fault in the
config continues under the same name. The step of `model.init_from` is chosen when the run is opened and written into
resolved.json, because the other run may go on; a trained tokenizer is copied, because that run may be deleted.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.spec import Data, Run, RunSpec
from prime_train.spec.answers import program_name

if TYPE_CHECKING:
    from prime_train.supervise.launch.program import Program
    from prime_train.supervise.launch.run_directory import ChangedValue


def program_of(run: RunSpec) -> Program:
    """The program that trains or serves a run."""
    program: Program = import_module(f"{__name__}.{program_name(run)}").PROGRAM
    return program


def list_refused(before: RunSpec, after: RunSpec) -> tuple[ChangedValue, ...]:
    """The changes that a resume with checkpoints would refuse. Without a run of a program on both sides there are none.

    A change of the program itself is the one that counts.
    """
    from prime_train.supervise.launch.run_directory import ChangedValue

    if {before.format, after.format} - {"run.toml", "prime-rl"}:
        return ()
    name, other = program_name(before), program_name(after)
    if name != other:
        return (ChangedValue("format", name, other, "the checkpoints are those of another program"),)
    return tuple(program_of(before).fixed_changes(before, after))


def recorded(run_dir: RunDir, *, strict: bool = True) -> tuple[Program, RunSpec]:
    """The program of a run directory, and the run as it began.

    A directory without resolved.json counts as the bundled trainer's, with the defaults; so does a directory whose
    resolved.json cannot be read, unless `strict`: then UserError is raised.
    """
    from prime_train.supervise.launch.run_directory import read_run_spec

    try:
        run = read_run_spec(run_dir)
    except UserError:
        if strict:
            raise
        run = None
    run = run or RunSpec(run=Run(name=run_dir.path.name, max_steps=1), data=Data(sources=()))
    return program_of(run), run
