"""What the user wants to train, and on what. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from prime_train.choose.workload import Workload
from prime_train.estimate.cost.run_cost import InterruptionRates, shipped_rates
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.values import Hardware, Interval
from prime_train.facts.earlier_saves import EarlierSaves

Task = Literal["pretrain", "sft", "rl"]
TASKS: tuple[Task, ...] = ("pretrain", "sft", "rl")
BUNDLED = "bundled"


class ChosenData(NamedTuple):
    """A source of text. `kind` and `path` as in [[data.sources]]; the rest is what its first records show.

    `field` is the column with the text or the chat. `longest_tokens` and `rows` are None if they are not known.
    """

    kind: str
    path: str = ""
    subset: str = ""
    field: str = ""
    longest_tokens: int | None = None
    rows: int | None = None


class Budget(NamedTuple):
    """The most that the run may cost, and the longest time that it may take; None for no limit."""

    usd: float | None = None
    hours: float | None = None


NO_LIMIT = Budget()


class GpuPlace(NamedTuple):
    """The machines. `hardware` has the GPUs of all `machines`. `free_disk_bytes` is None for another machine.

    `saves` are those of earlier runs on this machine, the latest run first; () for another machine.
    """

    hardware: Hardware
    machines: int = 1
    free_disk_bytes: int | None = None
    interruptions_per_hour: float | None = None  # None: the shipped rate
    is_spot: bool = False
    saves: tuple[EarlierSaves, ...] = ()

    @property
    def rates(self) -> InterruptionRates:
        """The shipped rates; that of spot machines is the user's, if it is given."""
        rates, own = shipped_rates(), self.interruptions_per_hour
        return rates if own is None else rates._replace(spot=Interval(own, own, own))

    @property
    def interruptions(self) -> float:
        """How often an hour the run is interrupted."""
        typical = shipped_rates().per_hour(self.hardware.gpus, spot=self.is_spot).typical
        return typical if self.interruptions_per_hour is None else self.interruptions_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The answers. None stands for a choice that is left to the estimator.

    `trainers` are tried in their order: "bundled", or a generation of prime-rl such as "2026-08".
    """

    task: Task
    name: str
    model: str  # a folder, or a name on the hub
    shape: ModelShape
    place: GpuPlace
    trainers: tuple[str, ...] = (BUNDLED,)
    data: ChosenData | None = None
    workload: Workload | None = None
    adapter: bool | None = None
    ctx_tokens: int | None = None
    steps: int | None = None
    budget: Budget = NO_LIMIT


class Concession(NamedTuple):
    """One concession: whether an adapter is trained, and the tokens of a sequence."""

    adapter: bool
    ctx_tokens: int
