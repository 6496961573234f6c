"""Jobs of presets, planned with prices that do not change, so that their files can be compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tomli

from prime_train.away.sky import task
from prime_train.away.sky.candidates import RentedGpus
from prime_train.away.sky.command_job import prepare
from prime_train.away.sky.job_plan import JobRequest, PlannedConfig, check_portable, plan_job
from prime_train.away.sky.task import SkyJobPlan
from prime_train.cli.estimate import inputs
from prime_train.config import detect
from prime_train.estimate.cost.run_cost import shipped_rates
from prime_train.prices.price import Price
from prime_train.registry.gpus import presets
from prime_train.spec import RunSpec

CLOUDS = ("aws", "gcp", "azure", "nebius", "lambda", "vast", "runpod", "primeintellect", "kubernetes", "auto")
NEED_A_FOLDER = {"gpt2-124m", "llama3-8b-continue"}  # presets of a model folder that the user fetches first
SALT = "0123456789"


def _price(provider: str, gpu: str, gpus: int, usd: float, *, spot: bool) -> Price:
    return Price(provider, gpu, gpus, usd, spot, "", "tests", "2026-11-21")


PRICES = (
    _price("nebius", "h100-80gb", 8, 1.25, spot=True),
    _price("nebius", "h100-80gb", 8, 2.95, spot=False),
    _price("nebius", "h200", 8, 1.45, spot=True),
    _price("nebius", "h200", 8, 3.50, spot=False),
    _price("primeintellect/nebius", "l40s", 1, 0.26, spot=True),
    _price("primeintellect/datacrunch", "l40s", 1, 0.87, spot=False),
    _price("primeintellect/datacrunch", "a100-80gb", 2, 0.53, spot=True),
    _price("primeintellect/datacrunch", "a100-80gb", 8, 1.79, spot=False),
    _price("vast", "rtx-4090", 1, 0.20, spot=True),
    _price("vast", "rtx-4090", 1, 0.40, spot=False),
)


def read_preset(name: str) -> tuple[RunSpec, PlannedConfig]:
    """The run of a preset, and its config."""
    return read_text(presets()[name].read_text(encoding="utf-8"), f"{name}.toml")


def read_text(text: str, path: str) -> tuple[RunSpec, PlannedConfig]:
    """The run of a config text, and the config."""
    reading = detect.read(text, path)
    assert reading.run is not None
    run = reading.run
    if run.format != "run.toml":  # a name is given on the command line, or by the file
        run = replace(run, run=replace(run.run, name=path.removesuffix(".toml")))
    shape = inputs.find_shape(run, reading, inputs.EstimateOptions(path, offline=True))
    return run, PlannedConfig(text, tomli.loads(text), path, shape)


def plan(name: str, cloud: str, *, bucket: str | None = None) -> SkyJobPlan:
    """The job of a preset. Raises UserError as `run --spot` does."""
    run, config = read_preset(name)
    check_portable(run, config, {})
    return plan_job(run, config, JobRequest(cloud, bucket, None, SALT), PRICES, shipped_rates())


COMMAND = """\
[run]
name = "words"
kind = "command"

[command]
argv = ["torchrun", "--nproc-per-node", "gpu", "train.py"]
trainer = "hf"

[command.checkpoints]
dir = "out"

[prime_train.spot]
setup = ["pip install -r requirements.txt"]
"""
TWO_GPUS = RentedGpus(2, "h100-80gb")


def plan_command(text: str, folder: Path, cloud: str = "nebius", gpus: RentedGpus | None = TWO_GPUS) -> SkyJobPlan:
    """The job of a command in a folder. Raises UserError as `run --spot` does."""
    run = detect.read(text, "run.toml").run
    assert run is not None
    assert run.command is not None
    run = replace(run, command=replace(run.command, cwd=str((folder / run.command.cwd).resolve())))
    run = prepare(run, gpus, "run.toml", submitted=False).run
    config = PlannedConfig(text, tomli.loads(text), "run.toml", None)
    check_portable(run, config, {})
    return plan_job(run, config, JobRequest(cloud, None, None, SALT, gpus=gpus), PRICES, shipped_rates())


def write_yaml(name: str, cloud: str) -> str:
    return task.to_yaml(task.document(plan(name, cloud)))
