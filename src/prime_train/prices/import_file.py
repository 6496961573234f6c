"""Reads a price file and detects its format: SkyPilot catalogue, answer of Prime Intellect or Vast, or own table.

Writes nothing. The caller passes what the file may not contain: the cloud and the day of its prices.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import OutsideError
from prime_train.prices import catalogues
from prime_train.prices.catalogues import prime_intellect_offers, prime_intellect_rows, vast_offers, vast_rows
from prime_train.prices.price import PriceFault, PriceRows, parse_table

MOST_BYTES = 64 * 2**20  # the largest catalogue, GCP's, has 2 MB
_PROVIDER = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}")
_FORMATS = "a SkyPilot vms.csv, JSON of Prime Intellect or Vast, or a TOML table with [[price]] rows"


class ImportedFile(NamedTuple):
    """Rows of a file, its format, and whether it holds all prices of its cloud."""

    rows: PriceRows
    kind: str
    whole: bool


def read(path: Path, today: date, provider: str = "", as_of: str = "") -> ImportedFile:
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
        ("Prime Intellect", prime_intellect_offers, prime_intellect_rows),
        ("Vast", vast_offers, vast_rows),
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
