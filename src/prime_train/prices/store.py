"""Keeps the price table: shipped rows, and the user's rows in one file that is written atomically."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.installation import cache_path
from prime_train.core.outside import CONFIG_BYTES
from prime_train.core.rundir import write_atomic
from prime_train.prices.price import Price, PriceFault, format_table, parse_table
from prime_train.registry import gpus


def today() -> date:
    """The UTC day, which dates prices. With local days a price fetched now could be dated tomorrow."""
    return datetime.now(UTC).date()


def user_file() -> Path:
    return Path(cache_path("prices.toml"))


def load(day: date) -> tuple[Price, ...]:
    """The user's rows, and the shipped rows of those clouds and GPUs that the user's rows do not cover.

    Raises UserError if the user's file cannot be read or holds an invalid price.
    """
    own = _read_own(user_file(), day)
    covered = {(price.cloud, price.gpu) for price in own}
    return (*own, *(price for price in shipped_prices() if (price.cloud, price.gpu) not in covered))


@cache
def shipped_prices() -> tuple[Price, ...]:
    """The rows of registry/offers.toml."""
    path = gpus.data_file("offers.toml")
    rows = parse_table(path.read_text(encoding="utf-8"), "registry/offers.toml", date.max)
    if rows.faults:
        raise rows.faults[0]
    return rows.prices


def save(found: Iterable[Price], day: date, *, whole: bool) -> Path:
    """Writes rows into the user's table in place of those they replace; returns the file's path.

    With `whole` they replace all rows of their clouds, else those of the same GPUs and clouds. Raises UserError if the
    table cannot be read or written; the table is then unchanged.
    """
    path, added = user_file(), list(found)
    clouds = {price.cloud for price in added}
    cards = {(price.cloud, price.gpu) for price in added}
    with _lock(path):
        kept = [
            price
            for price in _read_own(path, day)
            if (price.cloud not in clouds if whole else (price.cloud, price.gpu) not in cards)
        ]
        try:
            write_atomic(path, format_table([*kept, *added]), is_private=False)
        except OSError as error:
            raise _write_error(path, error) from None
    return path


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lets one import wait for another, because each would overwrite the rows of the other."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_name(f".{path.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise _write_error(path, error) from None


def _read_own(path: Path, day: date) -> tuple[Price, ...]:
    fix = f"correct it there, or delete {path} and import again"
    try:
        text = outside.read_text(path, CONFIG_BYTES)
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "") or str(error)
        raise UserError("the price table cannot be read", str(path), why, fix) from None
    try:
        rows = parse_table(text, str(path), day)
        if rows.faults:
            raise rows.faults[0]
    except PriceFault as fault:
        raise UserError(fault.what, fault.where, fault.why, fix) from None
    return rows.prices


def _write_error(path: Path, error: OSError) -> UserError:
    return UserError(
        what="the price table cannot be written",
        where=str(path),
        why=error.strerror or str(error),
        fix="free disk space or give write access there, or set PRIME_TRAIN_CACHE to another directory",
    )
