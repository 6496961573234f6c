"""Reads a file of prices by its shape: a SkyPilot catalogue, answers of Prime Intellect or Vast, our own table.

Writes nothing. What cannot be told from the file (whose catalogue, of which day) is asked of the caller.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

from prime_train.errors import UserError
from prime_train.prices import primeintellect, skypilot, table, vast
from prime_train.prices.price import Fault, Rows
from prime_train.prices.store import refused

MOST_BYTES = 64 * 2**20  # the largest catalogue, GCP's, has 2 MB
_PROVIDER = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}")
_SHAPES = "a SkyPilot vms.csv, JSON of Prime Intellect or Vast, or a TOML table with [[price]] rows"


class Given(NamedTuple):
    """What the caller says of a file: its cloud and the day of its prices, "" where not said."""

    provider: str = ""
    as_of: str = ""


class Imported(NamedTuple):
    """Rows of a file, what kind of file it is, and whether it is all that its cloud has."""

    rows: Rows
    kind: str
    whole: bool


def read(path: Path, given: Given, today: date) -> Imported:
    """The prices in a file. Raises UserError where it cannot be read, is none of the known, or a price is wrong."""
    text = _text(path)
    shown = str(path)
    as_of = given.as_of or _modified(path, today)
    imported = _recognised(text, path, given.provider, as_of, today)
    if imported.rows.faults:
        more = len(imported.rows.faults) - 1
        fault = imported.rows.faults[0]
        also = f" (and {more} more)" if more else ""
        raise refused(fault._replace(what=fault.what + also), f"correct the file, or leave the row out of {shown}")
    if not imported.rows.prices:
        reasons = "; ".join(f"{why}: {rows}" for why, rows in imported.rows.left_out[:3])
        raise UserError(
            what="no price in it", where=shown, why=reasons or "it has no row with a GPU", fix=f"give it {_SHAPES}"
        )
    return imported


def _recognised(text: str, path: Path, provider: str, as_of: str, today: date) -> Imported:
    shown = str(path)
    plain = text.lstrip("\ufeff \t\r\n")
    if plain.startswith("{") or (plain.startswith("[") and not plain.startswith("[[")):
        return _json(text.lstrip("\ufeff"), shown, as_of)
    first = text.lstrip("\ufeff").split("\n", 1)[0]
    if "AcceleratorName" in first or path.suffix.lower() == ".csv":
        return Imported(
            _rows(skypilot.rows(text.lstrip("\ufeff"), shown, _provider(path, provider), as_of)), "SkyPilot", True
        )
    if plain.startswith("[[") or "[[price]]" in text or path.suffix.lower() == ".toml":
        return Imported(_rows(table.parse(text, shown, today)), "prime-train", False)
    raise UserError(what="this is no price list", where=shown, why="its shape is not known", fix=f"give it {_SHAPES}")


def _json(text: str, shown: str, as_of: str) -> Imported:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise _no_json(shown, f"{error.msg}, line {error.lineno} column {error.colno}; it may be cut off") from None
    except RecursionError:
        raise _no_json(shown, "it is nested too deep for a price list") from None
    except ValueError as error:  # a number of more digits than Python reads
        raise _no_json(shown, str(error)) from None
    for kind, reader in (("Prime Intellect", primeintellect), ("Vast", vast)):
        found = reader.items(document)
        if found is not None:
            return Imported(reader.rows(found, shown, f"{kind}, imported", as_of), kind, False)
    raise UserError(
        what="JSON that is no price list",
        where=shown,
        why='Prime Intellect answers {"items": [...]}, Vast {"offers": [...]}',
        fix=f"give it {_SHAPES}",
    )


def _no_json(shown: str, why: str) -> UserError:
    return UserError(what="the JSON cannot be read", where=shown, why=why, fix="fetch the file once more")


def _rows(found: Rows | Fault) -> Rows:
    if isinstance(found, Fault):
        raise refused(found, f"give it {_SHAPES}")
    return found


def _provider(path: Path, given: str) -> str:
    """Whose catalogue it is: as said, else the folder it lies in (catalogs/v8/lambda/vms.csv)."""
    folder = path.absolute().parent.name
    name = given or (folder if path.name == "vms.csv" else "")
    if not _PROVIDER.fullmatch(name):
        raise UserError(
            what="not said whose prices these are" if not name else f"{name!r} is no name of a cloud",
            where=str(path),
            why="the file names no cloud; only catalogs/.../CLOUD/vms.csv tells it by its folder",
            fix=f"prime-train prices import {path} --provider lambda",
        )
    return name


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UserError(
                what=f"more than {MOST_BYTES >> 20} MiB",
                where=str(path),
                why="the largest catalogue there is has 2 MB",
                fix="name the price list itself",
            )
        return content.decode("utf-8")
    except FileNotFoundError:
        raise UserError(
            what="there is no such file", where=str(path), why="prices are read from it", fix=f"name {_SHAPES}"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", "") or str(error)
        raise UserError(what="it cannot be read", where=str(path), why=why, fix=f"name {_SHAPES}") from None


def _modified(path: Path, today: date) -> str:
    """The day the file was written: at most as old as its prices, and all that is known of them."""
    return min(datetime.fromtimestamp(path.stat().st_mtime, UTC).date(), today).isoformat()
