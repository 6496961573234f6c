"""What of a run's events cannot be read, by file. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prime_train.core.units import counted


@dataclass(frozen=True, slots=True)
class Damage:
    """The records of one file that are not used. Lines that a crash cut short are no damage."""

    file: str
    missing: int = 0  # their positions are not in the file
    damaged: int = 0  # lines whose checksum, types or numbers are wrong
    foreign: int = 0  # lines of another program, or lines that are there twice
    unknown: int = 0  # records of a kind or version that this prime-train does not know
    unopened: str = ""  # why the file is not opened: it is a pipe or a link

    @property
    def is_lost(self) -> bool:
        """Something is lost. A record of a later version is not: that version reads it."""
        return bool(self.missing or self.damaged or self.foreign or self.unopened)

    def __str__(self) -> str:
        counts = ((self.missing, "missing record"), (self.damaged, "damaged line"), (self.foreign, "foreign line"))
        parts = [counted(count, what) for count, what in counts if count]
        if self.unknown:
            parts.append(f"{counted(self.unknown, 'event')} of an unknown kind")
        if self.unopened:
            parts.append(f"not opened, because {self.unopened}")
        return f"{self.file}: {', '.join(parts)}"


def describe(found: Iterable[Damage]) -> str:
    """One line about all files; "" if nothing is lost."""
    return "; ".join(str(damage) for damage in found if damage.is_lost)
