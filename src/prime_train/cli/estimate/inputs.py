"""The inputs of `prime-train estimate` and `find`: run, model, GPUs, prices and an earlier run. Prints nothing.

A missing input raises UserError, with the option or key to set.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from pathlib import Path
from typing import NamedTuple

from prime_train.cli.lint.files import refuse_generation
from prime_train.config import detect
from prime_train.config.detect import SHOWN_STDIN, STDIN, read_config
from prime_train.config.foreign.recipe.draft import RecipeDraft, to_recipe, with_run
from prime_train.config.foreign.values import COMMAND_LINE
from prime_train.config.parsed_config import REFUSED, Reading
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.findings import Severity
from prime_train.estimate import hardware as hardware_of
from prime_train.estimate.calibrate import Calibration, calibration_of, read_measurement, scaled_differences
from prime_train.estimate.estimate import estimate
from prime_train.estimate.memory.setup_from_recipe import program_table
from prime_train.estimate.model import shape as shapes
from prime_train.estimate.model.shape import ModelShape, ShapeError
from prime_train.estimate.open_fields import refuse_decisive
from prime_train.estimate.sanity import find_implausible
from prime_train.estimate.target_steps import steps_to_loss
from prime_train.estimate.values import Hardware
from prime_train.facts.facts import NotKnown
from prime_train.facts.files import tokenizer_folder
from prime_train.facts.host import gpus
from prime_train.facts.previous_run import read_previous_run
from prime_train.models.read import find_config as model_config
from prime_train.models.read.find_config import ModelConfig, no_config
from prime_train.prices import store
from prime_train.prices.price import Price
from prime_train.prices.store import read_price_file
from prime_train.registry.known import shape_rows
from prime_train.rules import judge
from prime_train.spec import RunSpec
from prime_train.spec.answers import model_field, model_name, server_gpus, trains, traits_of


class EstimateOptions(NamedTuple):
    """The options of the command line."""

    config: str
    gpus: str | None = None
    model_config: str | None = None
    calibrate: str | None = None
    prices: str | None = None
    prime_rl: str | None = None
    offline: bool = False
    gpu_memory_gib: float | None = None
    gpu_bf16_tflops: float | None = None
    calibrate_config: str | None = None
    steps: int | None = None
    target_loss: float | None = None
    command: str | None = None  # in place of a config


def parse_config(options: EstimateOptions) -> Reading:
    """The reading of the config, with a run also for the file of another program. Raises UserError."""
    if options.prime_rl is not None:
        refuse_generation(options.prime_rl)
    text, path = read_config(options.config) if options.command is None else (options.command, COMMAND_LINE)
    reading = detect.read(text, path, options.prime_rl)
    draft = draft_of(reading)
    if draft is None:
        return reading
    refuse_decisive(draft, path)
    return with_run(reading, draft)


def draft_of(reading: Reading, gpus: int | None = None) -> RecipeDraft | None:
    """The training of another program's file; None for any other file. `gpus`: their number where it sets none."""
    return None if reading.foreign is None else to_recipe(reading.foreign, gpus)


def check_run(reading: Reading) -> RunSpec:
    """The run of a reading. Raises UserError for the first schema error or implausible value.

    A refused combination changes no value, so what the run would need is known.
    """
    if reading.foreign is not None and reading.run is None:
        from prime_train.config.foreign.read import refuse_command  # here, because most configs are TOML

        raise refuse_command(reading, "an estimate")
    if reading.run is not None:
        _refuse_program(reading.run, reading)
        _refuse_implausible(reading.run, reading)
    if reading.run is not None and all(fault.code == REFUSED for fault in reading.faults):
        return reading.run
    found = judge.judge(reading).findings
    errors = [
        item
        for item in found
        if item.code.startswith("CFG") and item.code != REFUSED and item.severity is Severity.ERROR
    ]
    if reading.run is not None and not errors:
        return reading.run
    file = STDIN if reading.document.path == SHOWN_STDIN else shlex.quote(reading.document.path)
    first, more = errors[0], f"prime-train lint {file} shows all {len(errors)}"
    raise UserError(
        what=first.what,
        where=f"{first.path}:{first.span.line}:{first.span.column}  {first.code}",
        why=first.why,
        fix=first.fix + (f"; {more}" if len(errors) > 1 else ""),
        exit_code=ExitCode.FINDINGS,
    )


def _refuse_program(run: RunSpec, reading: Reading) -> None:
    """Raises UserError for a recipe of a program whose memory is not known."""
    program = run.recipe.program if run.recipe is not None else None
    why = program_table(program).get("refused")
    if why is None:
        return
    raise UserError(
        what=f"no estimate for {program}",
        where=reading.document.path,
        why=why,
        fix='the program with the same trainer: program = "megatron-lm", "hf" or "torchtitan" in [recipe]',
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


def find_shape(run: RunSpec, reading: Reading, options: EstimateOptions) -> ModelShape:
    """The shape of the model that a run trains or serves. Raises UserError."""
    if options.model_config is not None:
        return _read_shape(model_config.read_config_file(options.model_config))
    if not (trains(run) or server_gpus(run)):
        raise UserError(
            what="it neither trains nor serves",
            where=reading.document.path,
            why="memory and time are estimated for a trainer or a server",
            fix="name the config of `rl`, `sft`, the trainer or the server",
            exit_code=ExitCode.FINDINGS,
        )
    named, field = model_name(run), model_field(run)
    draft = draft_of(reading) if named is None else None
    if draft is not None and draft.sizes is not None:
        return _read_shape(ModelConfig(draft.sizes, "the model of the command line", reading.document.path))
    if named is None and not traits_of(run).has_size_fields:
        raise _no_model(reading, field, "" if draft is None else draft.not_known.get("model_name", ""))
    if named is not None:
        return find_named_shape(named, f"{reading.key(field)} in {reading.document.path}", offline=options.offline)
    try:
        return shapes.shape_from_run(run, _vocab_size(run))
    except ShapeError as error:
        raise UserError(
            what=error.what,
            where=reading.document.path,
            why="memory and time are computed from the size fields of [model]",
            fix="lower model.layers, model.hidden_size or model.mlp_size",
            exit_code=ExitCode.FINDINGS,
        ) from None


def find_named_shape(name: str, where: str, *, offline: bool) -> ModelShape:
    """The shape of a folder, of a model of the registry, or of one on the hub. Raises UserError."""
    known = None if Path(name).is_dir() else shapes.shape_from_registry(name)
    if known is not None:  # saves a request to the hub, which may take ten seconds
        return known
    return _read_shape(model_config.find_config(name, where, shape_rows(), offline=offline))


def _no_model(reading: Reading, field: str, written: str) -> UserError:
    """The error for a file that names no model, or one that is not known: `written` is what it has."""
    given = "--model-config with a config.json"
    return UserError(
        what=f"the model is not known: {written}" if written else "no model is named",
        where=reading.document.path,
        why="memory and time depend on the model",
        fix=f"set {reading.key(field)}, or {given}" if reading.foreign is None or reading.has(field) else given,
        exit_code=ExitCode.FINDINGS,
    )


def _read_shape(found: ModelConfig) -> ModelShape:
    """The shape of a config.json. Raises UserError, with exit code 1, if a size is missing."""
    try:
        return shapes.shape_from_config(found.config, found.name, loaded=found.loaded)
    except ShapeError as error:
        what = error.what if error.field else f"{found.name}: {error.what}"
        raise no_config(found.where, what, error.field) from None


def _vocab_size(run: RunSpec) -> int:
    if run.tokenizer.path is None:
        return run.tokenizer.vocab_size
    folder = tokenizer_folder(run.tokenizer.path)
    return folder.vocab_size if folder is not None and folder.vocab_size is not None else run.tokenizer.vocab_size


def find_gpus(options: EstimateOptions) -> Hardware:
    """The GPUs of --gpus, else those of this machine. Raises UserError with exit code 4 if there are none."""
    if options.gpu_memory_gib is not None and options.gpu_bf16_tflops is not None:
        numbers = hardware_of.GpuNumbers(options.gpu_memory_gib, options.gpu_bf16_tflops)
        return hardware_of.hardware_from_numbers(options.gpus, numbers)
    if options.gpu_memory_gib is not None or options.gpu_bf16_tflops is not None:
        lacking = "--gpu-memory-gib" if options.gpu_memory_gib is None else "--gpu-bf16-tflops"
        raise UserError(
            what=f"{lacking} is missing",
            where="--gpu-memory-gib and --gpu-bf16-tflops",
            why="a GPU outside the registry needs both: memory and time depend on them",
            fix="--gpu-memory-gib 95 --gpu-bf16-tflops 148, from its data sheet",
        )
    if options.gpus is not None:
        return hardware_of.hardware_from_name(options.gpus)
    found = gpus()
    devices = () if isinstance(found, NotKnown) else tuple((gpu.name, gpu.memory_bytes) for gpu in found.devices)
    here = hardware_of.hardware_from_devices([device for device in devices if device[1]])
    if here is not None:
        return here
    names = ", ".join(sorted({name for name, _ in devices if name}))
    raise UserError(
        what=f"the registry has no {names}" if names else f"no GPU of this machine answers: {found.reason}",
        where="--gpus",
        why="memory and time depend on the GPU",
        fix="--gpus 8xh100-80gb, or other GPUs to estimate for; --gpu-memory-gib and --gpu-bf16-tflops for any",
        exit_code=ExitCode.OUT_OF_REACH,
    )


def read_prices(options: EstimateOptions) -> tuple[Price, ...]:
    """The prices of --prices, else those of the price table."""
    if options.prices is not None:
        return read_price_file(Path(options.prices).expanduser(), store.today()).rows.prices
    return store.load(store.today())


class WantedSteps(NamedTuple):
    """The run with the steps that the user asks for, and what was assumed for them ("" for nothing)."""

    run: RunSpec
    assumed: str


def with_steps(options: EstimateOptions, run: RunSpec) -> WantedSteps:
    """The run with the steps of --steps, or those until --target-loss by the loss curve of --calibrate.

    Raises UserError if both are given, or no curve is.
    """
    if options.steps is None and options.target_loss is None:
        return WantedSteps(run, "")
    if options.steps is not None and options.target_loss is not None:
        raise UserError(
            "both are given", "--steps and --target-loss", "each sets the steps of the run", "give one of them"
        )
    if options.steps is not None:
        return WantedSteps(_set_steps(run, options.steps), f"{options.steps:,} steps: --steps")
    if options.calibrate is None:
        raise UserError(
            what="a loss without a curve",
            where="--target-loss",
            why="the steps until a loss are extrapolated from the curve of an earlier run",
            fix="--calibrate RUN, whose metrics have step and loss, or --steps N",
        )
    previous = read_previous_run(options.calibrate)
    assert options.target_loss is not None
    found = steps_to_loss(previous.lines, options.target_loss, previous.source)
    low, steps, high = (math.ceil(value) for value in found)
    why = f"until a loss of {options.target_loss:g}, by the curve of {previous.source}"
    return WantedSteps(_set_steps(run, steps), f"{steps:,} steps ({low:,} to {high:,}) {why}")


def _set_steps(run: RunSpec, steps: int) -> RunSpec:
    return dataclasses.replace(run, run=dataclasses.replace(run.run, max_steps=steps))


def calibrate(options: EstimateOptions, run: RunSpec, hardware: Hardware, shape: ModelShape) -> Calibration | None:
    """Measured over estimated memory and time of the earlier run of --calibrate.

    The earlier run is estimated from its own config: that of its run directory or of --calibrate-config, else this one.
    Raises UserError if the two configs differ in more than sizes.
    """
    if options.calibrate is None:
        return None
    previous = read_previous_run(options.calibrate)
    measured = read_measurement(previous.lines, previous.source)
    earlier = previous.run
    if options.calibrate_config is not None:
        earlier = check_run(parse_config(options._replace(config=options.calibrate_config)))
    scaled: tuple[str, ...] | None = None
    if earlier is not None:
        scaled = tuple(one.text() for one in scaled_differences(earlier, run, previous.source))
        run = earlier  # of the same model: scaled_differences refuses another one
    estimated = estimate(run, hardware, shape)
    trainer = next((role.memory for role in estimated.memory.roles if role.memory.role == "trainer"), None)
    step_s = estimated.time.throughput.step_s if estimated.time is not None else None
    return calibration_of(measured, trainer, step_s, scaled)
