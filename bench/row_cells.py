"""Reads the cells of tables of measured rows: numbers, lists of pairs, GPUs, models, layouts. Builds no run.

A cell can be missing, blank, or in one of several notations. An unreadable cell raises Unreadable with the reason.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from prime_train.core.errors import UserError
from prime_train.estimate.hardware import hardware_from_entry, hardware_from_name
from prime_train.estimate.model.shape import ModelShape, shape_from_registry
from prime_train.estimate.values import Hardware
from prime_train.registry import gpus as gpu_registry
from prime_train.registry import known
from prime_train.toml.did_you_mean import nearest

_YES, _NO = ("yes", "true", "1", "on"), ("", "no", "false", "0", "off", "none", "n/a", "nan", "-")
_NOT_KNOWN = ("", "none", "n/a", "na", "nan", "null", "-", "?")
_CONTEXTS = {65: 65536, 131: 131072, 262: 262144}  # "65k" means 65536
_GPU_KEYS = r"hsdp|fsdp|ddp|dp_?replicate|dp_?shard|zero|dp|tp|cp|sp|ep|pp"


class Unreadable(ValueError):
    """A cell that cannot be used; the message names the cell and the reason."""


class Mesh(NamedTuple):
    """The sizes in a row; the default is 1, and None for `shards` and `replicas`."""

    shards: int | None = None
    replicas: int | None = None
    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1


def lines(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Every line of a CSV file: its id ("memory_dev:12") and its cells by column. Raises Unreadable for other files."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from error
    try:
        table = csv.DictReader(text.splitlines(keepends=True))
        named = set(table.fieldnames or ())
        read = list(table)
    except csv.Error as error:
        raise Unreadable(f"{path}: {error}: not a CSV file") from error
    if len(named) < 2:
        raise Unreadable(f"{path}: its first line has no column names")
    for number, line in enumerate(read, start=1):
        cells = {key: (value or "").strip() for key, value in line.items() if isinstance(key, str)}
        yield f"{path.stem}:{number}", cells


def text(line: Mapping[str, str], column: str) -> str:
    """A cell; "" if it is missing or marked as not known."""
    cell = line.get(column, "")
    return "" if cell.lower() in _NOT_KNOWN else cell


def number(line: Mapping[str, str], column: str, least: float = 0.0) -> float | None:
    """The first number of a cell ("~23.7 GiB" is 23.7); None if the cell is blank."""
    cell = text(line, column)
    if not cell:
        return None
    found = re.search(r"[-+]?\d[\d,_]*(?:\.\d+)?(?:[eE][-+]?\d+)?", cell)
    value = float(found[0].replace(",", "").replace("_", "")) if found else None
    if value is None or not least <= value < 1e15:
        raise Unreadable(f"{column} is {cell!r}, not a number >= {least:g}")
    return value


def whole(line: Mapping[str, str], column: str, default: int | None = None) -> int:
    """A count of at least 1; "16k" is 16384. Raises Unreadable if the cell is blank and there is no default."""
    value = number(line, column, 1)
    if value is None:
        if default is None:
            raise Unreadable(f"{column} is missing")
        return default
    if re.search(r"\d\s*[kK]\b", line[column]):
        return _CONTEXTS.get(int(value), int(value * 1024))
    return int(value)


def flag(line: Mapping[str, str], column: str) -> bool:
    """Whether a cell is "yes"; a blank cell is "no". Raises Unreadable for anything else."""
    cell = line.get(column, "").lower()
    if cell in _YES:
        return True
    if cell in _NO:
        return False
    raise Unreadable(f"{column} is {cell!r}: yes or no")


def pairs(extra: str) -> dict[str, str]:
    """ "type=lora; targets=q,v" -> {"type": "lora", "targets": "q,v"}."""
    found = (part.partition("=") for part in extra.split(";"))
    return {key.strip().lower(): value.strip() for key, _, value in found if value.strip()}


@cache
def model(name: str) -> ModelShape:
    """The shape of a model by its name, in any case, with or without the owner. Raises Unreadable."""
    if not name:
        raise Unreadable("model is missing")
    shape = shape_from_registry(name)
    if shape is not None:
        return shape
    names, wanted = list(known.shape_rows()), name.lower().split("/")[-1]
    same = [each for each in names if each.lower() == name.lower()]
    same = same or [each for each in names if each.lower().split("/")[-1] == wanted]
    shape = shape_from_registry(same[0]) if len(same) == 1 else None
    if shape is None:
        meant = nearest(name, names)
        raise Unreadable(f"model {name!r} has no shape in the registry" + (f"; nearest: {meant}" if meant else ""))
    return shape


@cache
def hardware(name: str, gpus: int) -> Hardware:
    """The GPUs by a name from the registry, a table or a driver. An unknown GPU has an unknown memory size."""
    plain = "-".join(word for word in name.lower().split() if not word.startswith("hbm"))
    for tried in (plain, _closest_gpu(plain)):
        try:
            return hardware_from_name(f"{gpus}x{tried}")
        except UserError:
            continue
    entry = gpu_registry.gpu_peak(name)
    return (
        hardware_from_entry(entry, gpus) if entry else Hardware(name, name or "unknown GPU", gpus, 0.0, 0.0, 0.0, None)
    )


def _closest_gpu(plain: str) -> str:
    """The id whose parts are all in the name: "h200" for "h200-141gb-sxm"; "h100" and "a100" alone mean 80 GB."""
    parts = {part for part in re.split(r"[-_/ ]", plain) if part}
    by_parts = {frozenset(gpu.id.removeprefix("rtx-").split("-")): gpu.id for gpu in gpu_registry.gpu_peaks()}
    bare = {part for part in parts if not re.fullmatch(r"nvidia|geforce|tesla|rtx|sxm\d?", part)}
    if bare in ({"h100"}, {"a100"}):
        return f"{bare.pop()}-80gb"
    within = [known for known in by_parts if known <= parts]
    return by_parts[max(within, key=len)] if within else plain


def degrees(parallelism: str) -> dict[str, int]:
    """Example: "fsdp32_tp8_asynctp" -> {"fsdp": 32, "tp": 8}; only named sizes of at least 1."""
    found = re.findall(rf"({_GPU_KEYS})[-_=]?(\d+)", parallelism.lower())
    return {name.replace("_", ""): max(1, int(size)) for name, size in found}


def mesh(parallelism: str, gpus: int) -> Mesh:
    """Examples: "fsdp32_tp8_asynctp" -> 32 shards, tp 8; "hsdp2x8" -> 2 copies of 8 shards. If the shards do not divide
    the GPUs, all GPUs are one group. Raises Unreadable if tensor and pipeline parallelism do not divide the GPUs."""
    cell, sizes = parallelism.lower(), degrees(parallelism)
    hybrid = re.search(r"hsdp(\d+)[x*](\d+)", cell)
    tp, cp, ep, pp = (sizes.get(name, 1) for name in ("tp", "cp", "ep", "pp"))
    if gpus % (tp * pp):
        raise Unreadable(f"parallelism {parallelism!r} does not divide {gpus} GPUs: tp {tp} x pp {pp}")
    rest = gpus // (tp * pp)
    shards = int(hybrid[2]) if hybrid else sizes.get("fsdp") or sizes.get("dpshard")
    if shards is None and "hsdp" in cell:
        copies = sizes.get("dpreplicate") or sizes.get("ddp")
        shards = rest // copies if copies else sizes.get("hsdp") or min(8, rest)  # one machine of eight GPUs
    if shards is not None:
        whole_shards = shards * cp  # some tables count context parallelism in the shards, others do not
        shards = next((size for size in (whole_shards, shards) if rest % size == 0), rest)  # n_gpus has priority
    return Mesh(shards, rest // shards if shards else None, tp, cp, ep, pp)
