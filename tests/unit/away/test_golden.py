"""Job files as they are written, so that a change of the format is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train import __version__
from prime_train.away.sky import task
from prime_train.away.sky.candidates import RentedGpus
from tests.golden import same_text_as_golden
from tests.unit.away.plans import COMMAND, TWO_GPUS, plan_command, write_yaml

JOBS = (
    ("quickstart", "auto"),
    ("h100-80gb", "nebius"),
    ("sft-quickstart", "aws"),
    ("rl-vllm-4-plus-4", "azure"),
    ("rl-h100-80gb", "gcp"),
    ("l40s", "primeintellect"),
)


@pytest.mark.parametrize(("preset", "cloud"), JOBS)
def test_job_file(preset: str, cloud: str) -> None:
    written = write_yaml(preset, cloud).replace(f"=={__version__}", "==VERSION")
    same_text_as_golden(f"job_{preset}_{cloud}.yaml", written)


# Words that a shell would read, and lines that end the texts in which the job has them.
QUOTED = r"""
[run]
name = "words"
kind = "command"
[command]
argv = ["./start.sh", "--prompt", "it's $HOME `id` $(id) \"\\\n", "a\nPRIME_TRAIN_CONFIG\nb"]
[command.checkpoints]
dir = "my 'out'/$(id)"
layout = "torch"
[command.resume]
how = "itself"
[prime_train.spot]
setup = ["echo 'open", "PRIME_TRAIN_SETUP", "quote'"]
[prime_train.backup]
provider = "s3"
bucket = "of-tests"
[prime_train.wandb]
project = "p"
"""
IN_A_BUCKET = QUOTED.partition("[prime_train.backup]")[0]
COMMANDS = (
    ("hf", "nebius", COMMAND, TWO_GPUS),
    ("hf", "auto", COMMAND, RentedGpus(1, "l40s")),  # with a price on one cloud
    ("quoted", "aws", IN_A_BUCKET, TWO_GPUS),
    ("quoted", "vast", QUOTED, TWO_GPUS),
)


@pytest.mark.parametrize(("name", "cloud", "text", "gpus"), COMMANDS, ids=[f"{row[0]}-{row[1]}" for row in COMMANDS])
def test_job_file_of_a_command(tmp_path: Path, name: str, cloud: str, text: str, gpus: RentedGpus) -> None:
    (tmp_path / ".skyignore").write_text("")
    written = task.to_yaml(task.document(plan_command(text, tmp_path, cloud, gpus)))
    written = written.replace(f"=={__version__}", "==VERSION").replace(str(tmp_path), "/home/me/project")
    same_text_as_golden(f"job_command_{name}_{cloud}.yaml", written)
