"""Keeps the price table: shipped rows, and the user's rows in one file that is written atomically.

Also reads price files: a SkyPilot catalogue, an answer of Prime Intellect or Vast, or a table like this one. The caller
passes what such a file may not contain: the cloud and the day of its prices.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.installation import cache_path
from prime_train.core.outside import CONFIG_BYTES, OutsideError
from prime_train.core.rundir import write_atomic
from prime_train.prices.price import Price, PriceFault, PriceRows, format_table, parse_table
from prime_train.registry import gpus

MOST_BYTES = 64 * 2**20  # the largest catalogue, GCP's, has 2 MB
_PROVIDER = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}")
_FORMATS = "a SkyPilot vms.csv, JSON of Prime Intellect or Vast, or a TOML table with [[price]] rows"


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


class ImportedFile(NamedTuple):
    """Rows of a file, its format, and whether it holds all prices of its cloud."""

    rows: PriceRows
    kind: str
    whole: bool


def read_price_file(path: Path, today: date, provider: str = "", as_of: str = "") -> ImportedFile:
    """The prices in a file. `provider` is the cloud and `as_of` the day, if the file does not show them.

    Raises UserError if the file is unreadable or unknown, or a price is wrong.
    """
    text, shown = _read_text(path), str(path)
    # The day on which the file was written: its prices may be older, but no other date is known.
    as_of = as_of or min(datetime.fromtimestamp(path.stat().st_mtime, UTC).date(), today).isoformat()
    try:
        imported = _parse(text, path, provider, as_of, today)
    except PriceFault as fault:
        raise UserError(fault.what, fault.where, fault.why, f"pass {_FORMATS}") from None
    if imported.rows.faults:
        more, first = len(imported.rows.faults) - 1, imported.rows.faults[0]
        also = f" (and {more} more)" if more else ""
        fix = f"correct the file, or remove the row from {shown}"
        raise UserError(first.what + also, first.where, first.why, fix)
    if not imported.rows.prices:
        reasons = "; ".join(f"{why}: {rows}" for why, rows in imported.rows.left_out[:3])
        raise _error(shown, "no price in it", reasons or "it has no row with a GPU")
    return imported


def _parse(text: str, path: Path, provider: str, as_of: str, today: date) -> ImportedFile:
    from prime_train.prices import catalogues  # here, because most commands read only the table

    shown = str(path)
    plain = text.lstrip()
    if plain.startswith("{") or (plain.startswith("[") and not plain.startswith("[[")):
        return _parse_json(text, shown, as_of)
    if "AcceleratorName" in text.split("\n", 1)[0] or path.suffix.lower() == ".csv":
        return ImportedFile(catalogues.rows(text, shown, _provider(path, provider), as_of), "SkyPilot", True)
    if plain.startswith("[[") or "[[price]]" in text or path.suffix.lower() == ".toml":
        return ImportedFile(parse_table(text, shown, today), "prime-train", False)
    raise _error(shown, "this is no price list", "its format is not known")


def _parse_json(text: str, shown: str, as_of: str) -> ImportedFile:
    from prime_train.prices import catalogues  # here, because most commands read only the table

    try:
        document = json.loads(text)
    except (RecursionError, ValueError) as error:
        why = str(error)  # such as a number with more digits than Python reads
        if isinstance(error, json.JSONDecodeError):
            why = f"{error.msg}, line {error.lineno} column {error.colno}; it may be cut off"
        elif isinstance(error, RecursionError):
            why = "it is nested too deeply for a price list"
        raise _error(shown, "the JSON cannot be read", why, "fetch the file again") from None
    for kind, offers, rows in (
        ("Prime Intellect", catalogues.prime_intellect_offers, catalogues.prime_intellect_rows),
        ("Vast", catalogues.vast_offers, catalogues.vast_rows),
    ):
        found = offers(document)
        if found is not None:
            return ImportedFile(rows(found, shown, f"{kind}, imported", as_of), kind, False)
    why = 'Prime Intellect answers {"items": [...]}, Vast {"offers": [...]}'
    raise _error(shown, "the JSON is no price list", why)


def _error(shown: str, what: str, why: str, fix: str = f"pass {_FORMATS}") -> UserError:
    return UserError(what, shown, why, fix)


def _provider(path: Path, option: str) -> str:
    """The cloud of a catalogue: the option, else the folder of the file (catalogs/v8/lambda/vms.csv)."""
    folder = path.absolute().parent.name
    name = option or (folder if path.name == "vms.csv" else "")
    if not _PROVIDER.fullmatch(name):
        what = "the cloud of these prices is not known" if not name else f"{name!r} is not the name of a cloud"
        why = "the file names no cloud; only the folder of catalogs/.../CLOUD/vms.csv does"
        raise _error(str(path), what, why, f"prime-train prices import {path} --provider lambda")
    return name


def _read_text(path: Path) -> str:
    try:
        return outside.read_text(path, MOST_BYTES).removeprefix("\ufeff")
    except FileNotFoundError:
        raise _error(str(path), "there is no such file", "prices are read from it") from None
    except OutsideError as error:
        raise outside.as_user_error(error, str(path), "pass the price list itself") from None
    except (OSError, ValueError) as error:
        raise _error(str(path), "it cannot be read", getattr(error, "strerror", "") or str(error)) from None
