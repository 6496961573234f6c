"""Keeps the price table: the shipped rows, and beside them the user's own in one file that is never half-written."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

from prime_train import registry
from prime_train.errors import UserError
from prime_train.prices import table
from prime_train.prices.price import Fault, Price, Rows
from prime_train.rundir import write_atomic
from prime_train.user_cache import cache_path


class PriceTable(NamedTuple):
    """All rows that count, and how many of them are the user's own."""

    prices: tuple[Price, ...]
    own: int


def today() -> date:
    """The day that prices are dated by, the same everywhere: by local days, one just asked for may be of tomorrow."""
    return datetime.now(UTC).date()


def user_file() -> Path:
    return Path(cache_path("prices.toml"))


def load(day: date) -> PriceTable:
    """The shipped rows and the user's. A cloud's shipped rows of a GPU give way to the user's of the same.

    Raises UserError where the user's file cannot be read or holds what is no price.
    """
    own = _own(user_file(), day)
    told = {(price.cloud, price.gpu) for price in own}
    return PriceTable((*own, *(price for price in shipped() if (price.cloud, price.gpu) not in told)), len(own))


@cache
def shipped() -> tuple[Price, ...]:
    """The rows of registry/offers.toml."""
    path = registry.data_file("offers.toml")
    rows = table.parse(path.read_text(encoding="utf-8"), "registry/offers.toml", date.max)
    if isinstance(rows, Fault) or rows.faults:
        raise ValueError(f"registry/offers.toml: {rows if isinstance(rows, Fault) else rows.faults[0]}")
    return rows.prices


def keep(found: Iterable[Price], day: date, *, whole: bool) -> Path:
    """Write rows into the user's table in place of those they supersede; the file's path.

    `whole` says that they are all that their clouds have; else they supersede the same GPUs of the same clouds.
    Raises UserError where the table cannot be read or written; it is then as it was.
    """
    path, added = user_file(), list(found)
    clouds = {price.cloud for price in added}
    cards = {(price.cloud, price.gpu) for price in added}
    with _locked(path):
        kept = [
            price
            for price in _own(path, day)
            if (price.cloud not in clouds if whole else (price.cloud, price.gpu) not in cards)
        ]
        try:
            write_atomic(path, table.to_text([*kept, *added]))
        except OSError as error:
            raise _unwritable(path, error) from None
    return path


def refused(fault: Fault, fix: str) -> UserError:
    """The message about a value that cannot stand in the table."""
    return UserError(what=fault.what, where=fault.where, why=fault.why, fix=fix)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two imports at once would each write what they read: one waits for the other."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_name(f".{path.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise _unwritable(path, error) from None


def _own(path: Path, day: date) -> tuple[Price, ...]:
    fix = f"correct it there, or delete {path} and import again"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            what="the price table cannot be read",
            where=str(path),
            why=getattr(error, "strerror", "") or str(error),
            fix=fix,
        ) from None
    rows: Rows | Fault = table.parse(text, str(path), day)
    if isinstance(rows, Fault):
        raise refused(rows, fix)
    if rows.faults:
        raise refused(rows.faults[0], fix)
    return rows.prices


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        what="the price table cannot be written",
        where=str(path),
        why=error.strerror or str(error),
        fix="make room or give write access there, or set PRIME_TRAIN_CACHE to another directory",
    )
