"""The options of `init`, and which of them are missing."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.core.errors import UserError

COMMAND = "command"  # of --trainer: a trainer that is not ours
CHEAPEST = "cheapest"
HERE = "here"
AUDIO = "audio"  # of --task: an encoder on clips, which needs no model
_OF_AUDIO = ("task", "trainer", "gpus", "data", "subset", "steps", "name", "offline")


class Flags(NamedTuple):
    """The options of the command line; None or "" for one that is not given."""

    task: str | None = None
    trainer: str = "auto"
    command: str | None = None
    model: str | None = None
    gpus: str | None = None
    env: str | None = None
    turns: str | None = None
    tools: str | None = None
    data: str | None = None
    subset: str = ""
    lora: bool | None = None
    ctx_tokens: int | None = None
    steps: int | None = None
    budget_usd: float | None = None
    budget_hours: float | None = None
    interruptions_per_day: float | None = None
    spot: bool = False
    name: str | None = None
    offline: bool = False

    @property
    def is_command(self) -> bool:
        return self.trainer == COMMAND or self.command is not None

    @property
    def per_hour(self) -> float | None:
        """Interruptions per hour."""
        return None if self.interruptions_per_day is None else self.interruptions_per_day / 24

    def missing(self) -> list[str]:
        """The flags without which nothing can be chosen."""
        if self.is_command:
            return [] if self.command is not None else ["--command"]
        if self.task == AUDIO:
            return [] if self.data is not None else ["--data"]
        lacking = [f"--{name}" for name in ("task", "model", "gpus") if getattr(self, name) is None]
        if self.task == "rl" and self.env is None:
            lacking.append("--env")
        if self.task in ("pretrain", "sft") and self.data is None and not (self.task == "sft" and self.env):
            lacking.append("--data")
        return lacking

    def list_given(self) -> list[str]:
        """The names of the options that are given."""
        return [name for name, value in self._asdict().items() if value != self._field_defaults[name]]

    def refuse(self) -> None:
        """Raise UserError for a number that is no amount, and for options that decide nothing of a command."""
        for name in ("budget_usd", "budget_hours", "interruptions_per_day"):
            amount = getattr(self, name)
            if amount is not None and not 0 < amount < 1e12:
                where = f"--{name.replace('_', '-')}"
                raise UserError(f"{amount:g} is no amount", where, "it is a number above zero", f"{where} 50")
        if not self.is_command:
            if self.task == AUDIO:
                self._refuse_for_audio()
            return
        unused = [name for name in self.list_given() if name not in ("task", "trainer", "command", "name", "offline")]
        if self.trainer not in ("auto", COMMAND):
            unused.append("trainer")
        if unused:
            raise UserError(
                what=f"--{unused[0].replace('_', '-')} decides nothing of a command",
                where=f"--trainer {COMMAND}" if self.command is None else f"--command {self.command!r}",
                why="a command has its sizes in its own flags and files, and none is chosen for it",
                fix=f"leave --{unused[0].replace('_', '-')} out, or choose another trainer",
            )

    def _refuse_for_audio(self) -> None:
        unused = [f"--{name.replace('_', '-')}" for name in self.list_given() if name not in _OF_AUDIO]
        if self.trainer not in ("auto", "bundled"):
            unused.append(f"--trainer {self.trainer}")
        if unused:
            raise UserError(
                what=f"{unused[0]} decides nothing of a run on audio",
                where=f"--task {AUDIO}",
                why="the bundled trainer trains an encoder from random weights on crops of clips",
                fix=f"leave {unused[0]} out; the encoder is in [audio.encoder] of the file that is written",
            )
