"""The options of `prime-train run --slurm`. Apart from run_slurm.py, so that other runs do not import the estimate."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from prime_train.core.errors import UserError

Slurm = Annotated[
    bool,
    typer.Option("--slurm", help="Submit it as a job that requeues itself at its time limit."),
]
Partition = Annotated[str | None, typer.Option("--partition", metavar="NAME", help="--slurm: the partition.")]
Account = Annotated[str | None, typer.Option("--account", metavar="NAME", help="--slurm: the account.")]
TimeLimit = Annotated[
    str | None, typer.Option("--time-limit", metavar="LIMIT", help="--slurm: minutes, H:MM:SS or D-HH:MM:SS.")
]
Sbatch = Annotated[
    list[str] | None,
    typer.Option("--sbatch", metavar="KEY=VALUE", help="--slurm: one more option of sbatch; repeatable."),
]
SlurmGpus = Annotated[
    str | None,
    typer.Option("--slurm-gpus", metavar="8xh100-80gb", help="--slurm: GPUs of a node, to check memory and time."),
]


class SlurmOptions(NamedTuple):
    """The options of a job, as given."""

    partition: str | None = None
    account: str | None = None
    time_limit: str | None = None
    sbatch: tuple[str, ...] = ()
    gpus: str | None = None
    output: str | None = None

    def refuse_without_slurm(self) -> None:
        """Raise UserError for an option of a job without --slurm."""
        for name in self._given():
            raise UserError(
                what=f"{name} is an option of a job on Slurm",
                where=name,
                why="without --slurm the run starts on this machine",
                fix=f"add --slurm, or leave {name} out",
            )

    def refuse_with_spot(self, *, slurm: bool) -> None:
        """Raise UserError for --slurm or an option of it beside --spot, which shares only --output."""
        for name in ("--slurm",) if slurm else self._replace(output=None)._given():
            raise UserError(
                what=f"{name} and --spot",
                where=name,
                why="Slurm queues a run on your own cluster, and --spot rents machines until the run ends",
                fix=f"leave {name} out, or --spot and its options; --max-usd-per-hour limits the price of a machine",
            )

    def _given(self) -> list[str]:
        names = ("--partition", "--account", "--time-limit", "--sbatch", "--slurm-gpus", "--output")
        values = (self.partition, self.account, self.time_limit, self.sbatch, self.gpus, self.output)
        return [name for name, value in zip(names, values, strict=True) if value]
