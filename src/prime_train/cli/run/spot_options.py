"""The options of `prime-train run --spot`. Apart from run_spot.py, so that other runs do not import the estimate."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from prime_train.core.errors import UserError

Spot = Annotated[
    bool, typer.Option("--spot", help="Run on rented spot machines, through SkyPilot; asks before it pays.")
]
Cloud = Annotated[
    str | None, typer.Option("--cloud", metavar="NAME|auto", help="--spot: the cloud; auto = the cheapest that fit.")
]
Bucket = Annotated[
    str | None,
    typer.Option(
        "--bucket", metavar="NAME", envvar="PRIME_TRAIN_SPOT_BUCKET", help="--spot: bucket of the checkpoints."
    ),
]
MaxPrice = Annotated[
    float | None, typer.Option("--max-usd-per-hour", min=0.01, help="--spot: highest price of a machine.")
]
Package = Annotated[
    str | None,
    typer.Option(
        "--package",
        metavar="URL",
        envvar="PRIME_TRAIN_SPOT_PACKAGE",
        help="--spot: address of prime-train for the machines, such as git+https://HOST/REPOSITORY@COMMIT or a wheel.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="--spot: do not ask before machines are rented.")]
Detach = Annotated[
    bool, typer.Option("--detach", help="Run in the background; --spot: submit the job and do not follow it.")
]
Output = Annotated[
    str | None, typer.Option("--output", metavar="FILE", help="--spot, --slurm: write the job to this file.")
]


class SpotOptions(NamedTuple):
    """The options of a job on rented machines, as given."""

    cloud: str | None = None  # None counts as "auto"
    output: str | None = None
    bucket: str | None = None
    max_usd_per_hour: float | None = None
    package_url: str | None = None
    yes: bool = False
    detach: bool = False
    dry_run: bool = False
    resume: str = "auto"
    as_json: bool = False

    def refuse_without_spot(self) -> None:
        """Raise UserError for an option of such a job without --spot. A bucket may come from the environment."""
        values = {
            "--cloud": self.cloud,
            "--max-usd-per-hour": self.max_usd_per_hour,
            "--yes": self.yes,
        }
        for name, value in values.items():
            if value:
                raise UserError(
                    what=f"{name} is an option of a job on rented machines",
                    where=name,
                    why="without --spot the run starts on this machine",
                    fix=f"add --spot, or leave {name} out",
                )
