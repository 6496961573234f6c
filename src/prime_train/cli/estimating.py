"""Does the work of `prime-train estimate`: reads config, model, GPUs, prices and an earlier run, and reckons. Prints
nothing. What it cannot find out it asks the user for."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from prime_train.dialects import dialect
from prime_train.dialects.read import SHOWN_STDIN, STDIN, read_config
from prime_train.dialects.reading import Reading
from prime_train.errors import ExitCode, UserError
from prime_train.estimate import hardware as hardware_of
from prime_train.estimate import shape as shapes
from prime_train.estimate.calibrate import Calibration, calibration_of, read_measurement
from prime_train.estimate.estimate import Estimate, estimate
from prime_train.estimate.estimate_advice import Case, Keys, advise
from prime_train.estimate.estimate_exact import Comparison, compare_terms, trace_input, why_not_traceable
from prime_train.estimate.plausible import find_implausible
from prime_train.estimate.scaling import ScaledLayout
from prime_train.estimate.shape import ModelShape, ShapeError
from prime_train.estimate.shapes_registry import shape_rows
from prime_train.estimate.values import Hardware
from prime_train.findings import Severity
from prime_train.prices.price import Price
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.model_config import ModelConfig


class Asked(NamedTuple):
    """What the command line asks for."""

    config: str
    gpus: str | None = None
    model_config: str | None = None
    calibrate: str | None = None
    prices: str | None = None
    prime_rl: str | None = None
    offline: bool = False


class Found(NamedTuple):
    """The estimate, the run and GPUs it is of, and the prices of such GPUs."""

    run: RunSpec
    hardware: Hardware
    estimate: Estimate
    prices: tuple[Price, ...]


def estimated(asked: Asked) -> Found:
    """The estimate of a config. Raises UserError where a part of it cannot be had."""
    reading = reading_of(asked.config, asked.prime_rl)
    run = run_of(reading)
    shape = model_of(run, reading, asked)
    hardware = gpus_of(asked)
    prices = prices_of(asked)
    calibration = calibration_for(asked, run, hardware, shape)
    found = estimate(run, hardware, shape, calibration, prices)
    case = Case(run, hardware, shape, found.memory, calibration)
    advised = found._replace(advice=advise(case, Keys(reading.key, reading.has)))
    return Found(run, hardware, advised, tuple(price for price in prices if price.gpu == hardware.id))


def traced(found: Found) -> tuple[Comparison, ...]:
    """One block and the head of the training, traced, beside the terms. Raises UserError where they cannot be."""
    from prime_train.estimate.setup import setup_of
    from prime_train.facts.traced import trace

    why_not = "nothing is trained"
    if found.estimate.memory.gpus.train:
        setup = setup_of(found.run, found.hardware, found.estimate.shape)
        why_not = why_not_traceable(setup)
        if not why_not:
            return compare_terms(setup, trace(trace_input(setup)))
    raise UserError(
        what=why_not,
        where="--exact",
        why="its blocks are made of the operations of the bundled trainer's own",
        fix="leave --exact out: the terms hold for it too",
    )


def scaled(found: Found) -> tuple[ScaledLayout, ...]:
    """The training laid over 1 to all GPUs in each way. Raises UserError where nothing is trained."""
    from prime_train.estimate.scaling import scale
    from prime_train.estimate.setup import setup_of
    from prime_train.estimate.training import training_memory

    hardware = found.hardware
    if not found.estimate.memory.gpus.train:
        raise UserError(
            what="nothing is trained",
            where="--scaling",
            why="it lays a training over GPUs",
            fix="leave --scaling out",
        )
    setup = setup_of(found.run, hardware, found.estimate.shape)
    return scale(setup, hardware, lambda other: training_memory(other, hardware))


def reading_of(config: str, prime_rl: str | None) -> Reading:
    """The reading of a config; `prime_rl` is the generation of a prime-rl file that names none. Raises UserError."""
    if prime_rl is not None:
        from prime_train.cli.linting import refuse_generation

        refuse_generation(prime_rl)
    text, path = read_config(config)
    return dialect.read(text, path, prime_rl)


def run_of(reading: Reading) -> RunSpec:
    """The run that a file describes. Raises UserError, with the first error in it, where it is not to be trusted."""
    if reading.run is not None:
        _refuse_implausible(reading.run, reading)
    if reading.run is not None and not reading.faults:
        return reading.run
    from prime_train.rules import judge

    found = judge.judge(reading, None).findings
    errors = [item for item in found if item.code.startswith("CFG") and item.severity is Severity.ERROR]
    if reading.run is not None and not errors:
        return reading.run
    file = STDIN if reading.document.path == SHOWN_STDIN else shlex.quote(reading.document.path)
    first, more = errors[0], f"prime-train lint {file} tells of all {len(errors)}"
    raise UserError(
        what=first.what,
        where=f"{first.path}:{first.span.line}:{first.span.column}  {first.code}",
        why=first.why,
        fix=first.fix + (f"; {more}" if len(errors) > 1 else ""),
        exit_code=ExitCode.FINDINGS,
    )


def _refuse_implausible(run: RunSpec, reading: Reading) -> None:
    found = next(find_implausible(run), None)
    if found is None:
        return
    key = reading.key(found.field)
    raise UserError(
        what=f"{key} = {found.what}",
        where=reading.document.path,
        why=found.why,
        fix=f"{key} = {found.instead}" if found.instead else f"lower {key}",
        exit_code=ExitCode.FINDINGS,
    )


def model_of(run: RunSpec, reading: Reading, asked: Asked) -> ModelShape:
    """The sizes of the model that a run trains or serves. Raises UserError."""
    from prime_train.facts import model_config

    if asked.model_config is not None:
        return shape_of(model_config.config_of_file(asked.model_config))
    if not (run.is_native or run.recipe or run.trainer or run.finetune or run.inference):
        raise UserError(
            what="it neither trains nor serves",
            where=reading.document.path,
            why="memory and time are those of a trainer or a server",
            fix="name the config of `rl`, `sft`, the trainer or the server",
            exit_code=ExitCode.FINDINGS,
        )
    named, field = _model_name(run)
    if named is None and not run.is_native:
        raise UserError(
            what="no model is named",
            where=reading.document.path,
            why="memory and time are those of a model",
            fix=f"set {reading.key(field)}, or --model-config with a config.json",
            exit_code=ExitCode.FINDINGS,
        )
    if named is not None:
        known = None if Path(named).is_dir() else shapes.shape_from_registry(named)
        if known is not None:  # not asked of the hub: an estimate takes half a second, a hub may take ten
            return known
        where = f"{reading.key(field)} in {reading.document.path}"
        return shape_of(model_config.config_of(named, where, shape_rows(), offline=asked.offline))
    try:
        return shapes.shape_from_run(run, _vocab_size(run))
    except ShapeError as error:
        raise UserError(
            what=error.what,
            where=reading.document.path,
            why="memory and time are reckoned from the size fields of [model]",
            fix="lower model.layers, model.hidden_size or model.mlp_size",
            exit_code=ExitCode.FINDINGS,
        ) from None


def shape_of(found: ModelConfig) -> ModelShape:
    """The shape that a config.json tells. Raises UserError, with exit code 1, where it tells none."""
    try:
        return shapes.shape_from_config(found.config, found.name, loaded=found.loaded)
    except ShapeError as error:
        from prime_train.facts.model_config import no_config

        what = error.what if error.field else f"{found.name}: {error.what}"
        raise no_config(found.where, what, error.field) from None


def _model_name(run: RunSpec) -> tuple[str | None, str]:
    """(name or folder of the model, RunSpec field that names it)."""
    if run.recipe is not None:
        return run.recipe.model_name, "recipe.model_name"
    if run.trainer is not None and run.trainer.model_name is not None:
        return run.trainer.model_name, "trainer.model_name"
    if run.inference is not None:
        return run.inference.model_name, "inference.model_name"
    return run.model.path, "model.path" if run.is_native else "trainer.model_name"


def _vocab_size(run: RunSpec) -> int:
    if run.tokenizer.path is None:
        return run.tokenizer.vocab_size
    from prime_train.facts.files import tokenizer_folder

    folder = tokenizer_folder(run.tokenizer.path)
    return folder.vocab_size if folder is not None and folder.vocab_size is not None else run.tokenizer.vocab_size


def gpus_of(asked: Asked) -> Hardware:
    """The GPUs that --gpus names, else those of this machine. Raises UserError with exit code 4 where it has none."""
    if asked.gpus is not None:
        return hardware_of.hardware_from_name(asked.gpus)
    from prime_train.facts.facts import NotKnown
    from prime_train.facts.gpus import gpus

    found = gpus()
    devices = () if isinstance(found, NotKnown) else tuple((gpu.name, gpu.memory_bytes) for gpu in found.devices)
    here = hardware_of.hardware_from_devices([device for device in devices if device[1]])
    if here is not None:
        return here
    names = ", ".join(sorted({name for name, _ in devices if name}))
    raise UserError(
        what=f"the registry has no {names}"
        if names
        else f"this machine has no GPU that could be asked: {found.reason}",
        where="--gpus",
        why="memory and time are those of a GPU",
        fix="--gpus 8xh100-80gb, or another that prime-train is to reckon for",
        exit_code=ExitCode.OUT_OF_REACH,
    )


def prices_of(asked: Asked) -> tuple[Price, ...]:
    """The prices of a file, else those of the table."""
    from prime_train.prices import store

    if asked.prices is not None:
        from prime_train.prices.imports import ImportOptions, read

        return read(Path(asked.prices).expanduser(), ImportOptions(), store.today()).rows.prices
    return store.load(store.today()).prices


def calibration_for(asked: Asked, run: RunSpec, hardware: Hardware, shape: ModelShape) -> Calibration | None:
    """How far the estimate of an earlier run was off: of its own config where it keeps one, else of this one."""
    if asked.calibrate is None:
        return None
    from prime_train.facts.measured_run import earlier

    before = earlier(asked.calibrate)
    measured = read_measurement(before.lines, before.source)
    its_run, its_shape = run, shape
    if before.run is not None:
        its_run = before.run
        its_shape = shapes.shape_from_run(its_run, _vocab_size(its_run)) if its_run.model.path is None else shape
    of_that_run = estimate(its_run, hardware, its_shape)
    trainer = next((role.memory for role in of_that_run.memory.roles if role.memory.role == "trainer"), None)
    step_s = of_that_run.time.throughput.step_s if of_that_run.time is not None else None
    return calibration_of(measured, trainer, step_s)
