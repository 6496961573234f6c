"""Runs the few steps of `prime-train profile` under supervision, in a folder of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from prime_train.cli.profile import sources
from prime_train.cli.run.preflight import CheckedConfig, Command, check_config
from prime_train.core import outside
from prime_train.core import spans as span_files
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import RECORD_BYTES
from prime_train.core.rundir import RunDir
from prime_train.events import Record
from prime_train.facts.host import count_usable_cores, read_throttled_s
from prime_train.profile.diagnosis import setup_of
from prime_train.programs import program_of
from prime_train.spec import RunSpec
from prime_train.spec.answers import policy_of
from prime_train.spec.data import Eval
from prime_train.spec.supervision import Alerts, Wandb
from prime_train.supervise.core.state import State
from prime_train.supervise.processes.lock import hold_run
from prime_train.views.run.console import open_console

_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")  # vLLM 0.32, v1/core/kv_cache_utils.py


def run_steps(options: sources.ProfileOptions, run: RunSpec | None) -> sources.Collected:
    """The spans of warm-up and counted steps. Raises UserError if the run fails; its folder is then kept."""
    root = _scratch(options, run)
    where = f"run.dir={json.dumps(str(root))}"
    command = Command(options.config, None, (*options.overrides, where))
    checked = check_config(command, validate=True, unwanted=("PTH002",))  # the folder is deleted, so it need not last
    spec = shorten(checked.spec, options.warm_up + options.steps)
    checked = checked._replace(spec=spec)
    run_dir, spans_file = checked.run_dir, root / sources.SPANS
    variables = {span_files.ENV: str(spans_file)}
    if options.trace is not None:
        variables[span_files.TRACE_ENV] = f"{spec.run.max_steps}:{options.trace.absolute()}"
    throttled_s = read_throttled_s()
    with _environment(variables):
        code = _supervise(checked)
    if code != ExitCode.OK:
        raise UserError(
            what=f"the run ended with exit code {int(code)} before its last step",
            where=str(run_dir.path),
            why="only whole steps are analysed",
            fix=f"prime-train diagnose {run_dir.path} names the cause; the folder is kept until you delete it",
            exit_code=code,
        )
    kv_tokens = _read_kv_tokens(run_dir)
    collected = sources.Collected(
        title=checked.spec.run.name,
        spans=sources.read_span_file(spans_file),
        setup=sources.add_host(
            setup_of(checked.spec, count_usable_cores(), kv_tokens, sources.count_gpus()), throttled_s
        ),
        imitation_steps=count_imitation_steps(spec),
        notes=tuple(_notes(spec)),
        compare=sources.compare_with_estimate(checked.spec, options),
    )
    if options.output is None:
        shutil.rmtree(root)
        with suppress(OSError):  # other runs are in it
            root.parent.rmdir()
    return collected


def shorten(run: RunSpec, steps: int) -> RunSpec:
    """The run with so many steps and one more, one attempt, and no evaluation that the steps do not contain.

    The last step does not count: it has no checkpoint in the loop, and a trace slows it down. The imitation of solved
    tasks at the start of an rl run comes before, because without it answers are longer and call no tools.
    """
    evaluates = run.eval.interval_steps is not None and run.eval.interval_steps <= steps
    own = run.prime_train
    return replace(
        run,
        run=replace(run.run, max_steps=count_imitation_steps(run) + steps + 1),
        eval=run.eval if evaluates else _shorten_evaluation(run.eval),
        checkpoint=replace(run.checkpoint, final="resumable"),
        prime_train=replace(
            own, restart=replace(own.restart, max_fruitless_attempts=1), alerts=Alerts(), wandb=Wandb()
        ),
    )


def _shorten_evaluation(settings: Eval) -> Eval:
    """Only the least evaluation after the last step, which does not count."""
    least = replace(settings, interval_steps=None, tokens=None, batches=1, tasks=1)
    return replace(least, prompts=(), sets=(), benchmarks=())


def count_imitation_steps(run: RunSpec) -> int:
    policy = policy_of(run)
    return 0 if policy is None else policy.warmup_steps


def _scratch(options: sources.ProfileOptions, run: RunSpec | None) -> Path:
    """The folder above the run's directory. By default it is on the disk of the real run. Raises UserError."""
    if options.output is None:
        parent = Path(run.run.dir if run is not None else "runs").expanduser()
        return (parent / f".profile-{os.getpid()}").absolute()
    if options.output.exists() and (not options.output.is_dir() or any(options.output.iterdir())):
        raise UserError(
            what="it exists and is not an empty folder",
            where=f"--output {options.output}",
            why="a profile never resumes or replaces a run",
            fix="name another folder",
        )
    return options.output.absolute()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables, which the processes of the run inherit."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _supervise(checked: CheckedConfig) -> ExitCode:
    from prime_train.supervise.core.loop import supervise  # here, because --help and a refused config do not need it

    with hold_run(checked.run_dir) as lock:
        opened = program_of(checked.spec).open_run(checked.text, checked.spec, checked.run_dir, "never")
        program = checked.program(writes=True)
        with open_console(sys.stderr) as show:

            def each_turn(state: State, records: Sequence[Record]) -> None:
                lock.keep()
                show(state, records)

            return supervise(opened.run, checked.run_dir, each_turn, program)


def _read_kv_tokens(run_dir: RunDir) -> int | None:
    """The tokens that the cache of a vLLM server holds, by its log; None without a server."""
    for log in sorted(run_dir.attempt(1).glob("*.log")):
        if (found := _KV_TOKENS.search(outside.read_text(log, RECORD_BYTES, log.parent, "replace"))) is not None:
            return int(found[1].replace(",", ""))
    return None


def _notes(run: RunSpec) -> Iterator[str]:
    if run.parallel.dp_shard > 1:
        yield "the collectives of sharded weights run inside forward and backward, and count there"
    if policy_of(run) is not None:
        yield "the model is as it is at the start of the run: later its answers may be longer or shorter"
