"""The log files of a Slurm job: the folder that they need. Judges the directives of a batch script."""

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
