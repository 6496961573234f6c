"""What a Slurm job needs beside its directives: a folder for its logs, and a training that is known."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.config.foreign.follow import exists
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Severity
from prime_train.rules.rule import file_rule


@file_rule("SLU004", Severity.WARNING)
def log_folder_is_not_there(reading: Reading) -> Iterator[Fault]:
    """The folder of `#SBATCH --output` and `--error` must exist when the job is submitted.

    Slurm opens the log before the script runs, so the job ends at once, without a log

    Source: sbatch(1), --output; toil#4633; Megatron-Bridge#2654.

    Bad:
        # file job.sh
        #!/bin/bash
        #SBATCH --nodes=1
        #SBATCH --output=logs/%x-%j.out
        torchrun --standalone --nproc_per_node 8 train.py
    Good:
        # file job.sh
        #!/bin/bash
        #SBATCH --nodes=1
        #SBATCH --output=%x-%j.out
        torchrun --standalone --nproc_per_node 8 train.py
    """
    for part in reading.foreign or ():
        for key in ("output", "error") if part.format == "sbatch" else ():
            value = part.values.get(key)
            folder, slash, _ = value.rpartition("/") if isinstance(value, str) else ("", "", "")
            # Slurm fills in what begins with %, and a folder with it is known only then.
            if slash and folder and "%" not in folder and exists(folder, part.document.path) is False:
                what = f"the folder {folder} does not exist here"
                yield Fault("SLU004", (*part.at, key), what, f"mkdir -p {folder} before sbatch", document=part.document)


@file_rule("SLU015", Severity.NOTE)
def job_without_a_known_training(reading: Reading) -> Iterator[Fault]:
    """A job is judged in full only if its training is started by a command that is known.

    a job whose training is not known is judged by its directives alone, so no other finding does not mean that it works

    The scripts that it sources or starts are read, too, where it is certain which files these are.

    Source: registry/launchers.toml.

    Bad:
        # file job.sh
        #!/bin/bash
        #SBATCH --nodes=1
        ./start_training --model llama
    Good:
        # file job.sh
        #!/bin/bash
        #SBATCH --nodes=1
        torchrun --standalone --nproc_per_node 8 train.py
    """
    parts = reading.foreign or ()
    jobs = [part for part in parts if part.format == "sbatch"]
    if jobs and not any(part.start for part in parts):
        what = "no training command that is known here is in it, and only the directives of the job are judged"
        fix = "lint the config of the training, or describe the training in a file with [recipe]"
        yield Fault("SLU015", (*jobs[0].at, next(iter(jobs[0].values))), what, fix, document=jobs[0].document)
