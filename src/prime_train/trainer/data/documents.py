"""The documents of an opened source, and the errors of reading one. Opens nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prime_train.core.errors import UserError
from prime_train.core.outside import OutsideError


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of an opened source."""

    count: int
    texts: Callable[[Sequence[int]], list[str]]
    skipped: int = 0  # files that are not text
    held_out: int = 0  # the last sections of a single document; 0 = whole documents, drawn by the seed


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert an OSError in the block to a UserError that names the file."""
    try:
        yield
    except OSError as error:
        refusal = error if isinstance(error, OutsideError) else None
        raise UserError(
            what=f"cannot read it: {error.strerror}",
            where=str(error.filename or path),
            why="data.sources names it" + (f", and {refusal.why}" if refusal else ""),
            fix=f"{'' if refusal else 'give this user read access (chmod +r), or '}remove it from the path",
        ) from error
