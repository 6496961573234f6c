"""Reads a vms.csv of the SkyPilot catalogue into prices. Pure: takes its text, opens nothing.

What a reader must know of these files (github.com/skypilot-org/skypilot-catalog, v8): columns stand in another order
for each cloud; Price and SpotPrice are of the whole instance; a spot-only row has no Price; Vast writes 0.00 and RunPod
the on-demand price where there is no spot; GCP tells host and GPUs in different rows; GpuInfo is a Python or a JSON
dict whose memory is that of one GPU for some clouds and of all for others.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from prime_train.prices.gpu_names import gpu_id_of_offer
from prime_train.prices.price import Fault, Price, Rows, count, finite_positive, number, per_gpu_hour
from prime_train.prices.regions import gathered

COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
# SkyPilot's names without a memory: V100 is the one of 16 GB (the other is V100-32GB), A100 the one of 40.
_BARE_GB = {"V100": 16.0, "A100": 40.0}
# Which machine carries which GPUs on GCP: sky/catalog/gcp_catalog.py@f00893d. N1 hosts vary, and are not guessed.
_GCP_HOSTS = {
    "A100": "a2-highgpu-{}g",
    "A100-80GB": "a2-ultragpu-{}g",
    "H100": "a3-highgpu-{}g",
    "H100-MEGA": "a3-megagpu-{}g",
    "H100-MEGA-80GB": "a3-megagpu-{}g",
    "H200": "a3-ultragpu-{}g",
    "B200": "a4-highgpu-{}g",
}
_GCP_L4_HOSTS = {1: "g2-standard-4", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"}
_HYPERSTACK_PCIE = re.compile(r"n3-[AH]100x\d")  # its SXM and NVLink flavours say so in their names


class _Told(NamedTuple):
    """Where a table comes from: its file, the cloud and the date."""

    shown: str
    provider: str
    as_of: str


def rows(text: str, shown: str, provider: str, as_of: str) -> Rows | Fault:
    """The prices of one cloud's table; a Fault where it is no such table."""
    reader = csv.DictReader(io.StringIO(text))
    try:
        header = reader.fieldnames or []
        lines = list(_lines(reader))
    except csv.Error as error:
        return Fault(f"{shown} line {reader.line_num}", f"no CSV: {error}", "the file is cut off, or not this table")
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        return Fault(
            f"{shown} line 1",
            f"no column {', '.join(missing)}",
            f"a SkyPilot catalogue has {', '.join(COLUMNS)}, in any order",
        )
    told = _Told(shown, provider, as_of)
    hosts = _gcp_hosts(line for _, line in lines)
    return gathered(
        item for line_number, line in lines for item in _of_line(line, f"{shown} line {line_number}", told, hosts)
    )


def _lines(reader: csv.DictReader[str]) -> Iterator[tuple[int, dict[str | None, str | None]]]:
    for line in reader:
        yield reader.line_num, dict(line)


_Line = Mapping[str | None, "str | None"]
_Hosts = Mapping[tuple[str, str], tuple[str, str]]  # (InstanceType, zone) -> (Price, SpotPrice)


def _of_line(line: _Line, where: str, told: _Told, hosts: _Hosts) -> Iterator[Price | Fault | str]:
    """The prices of one line, on-demand and spot; a Fault; or why it is left out."""
    if None in line or None in line.values():
        yield Fault(where, "another number of columns than the header", "the file is cut off, or not this table")
        return
    name = _text(line, "AcceleratorName")
    if not name:
        return  # a machine without GPUs: most of the table
    gpus = count(line["AcceleratorCount"], f"{where}, column AcceleratorCount")
    if isinstance(gpus, Fault):
        yield gpus
        return
    gpu = _gpu(line, name, gpus)
    if gpu is None:
        yield f"{name} is not in registry/gpus.toml"
        return
    costs = _costs(line, name, gpus, hosts)
    if costs is None:
        yield f"{name}: the price of its host is not in the table"
        return
    yield from _prices(costs, (gpu, gpus), where, told._replace(provider=_owner(line, told.provider)), line)


def _prices(
    costs: tuple[list[str], list[str]], offer: tuple[str, int], where: str, told: _Told, line: _Line
) -> Iterator[Price | Fault | str]:
    on_demand, spot = costs
    gpu, gpus = offer
    if spot == on_demand and all(spot):
        spot = [""]
        yield "spot price equal to the on-demand one: there is no spot"
    for column, parts in (("Price", on_demand), ("SpotPrice", spot)):
        if not all(parts) or (column == "SpotPrice" and _is_zero(parts)):
            continue  # not sold so
        usd = _sum(parts, gpus, f"{where}, column {column}")
        if isinstance(usd, Fault):
            yield usd
        else:
            region = _text(line, "Region").strip(" ,")
            yield Price(told.provider, gpu, gpus, usd, column == "SpotPrice", region, _source(told), told.as_of)


def _source(told: _Told) -> str:
    return f"SkyPilot catalogue, {told.provider.partition('/')[0]}"


def _sum(parts: list[str], gpus: int, where: str) -> float | Fault:
    """USD per GPU hour of what makes up an offer, each part a price by itself."""
    total = 0.0
    for part in parts:
        usd = number(part, where)
        if isinstance(usd, Fault):
            return usd
        total += usd
    found = per_gpu_hour(total, gpus, where)
    return found if isinstance(found, Fault) else round(found, 4)


def _costs(line: _Line, name: str, gpus: int, hosts: _Hosts) -> tuple[list[str], list[str]] | None:
    """What Price and SpotPrice of the offer are made of; None where a part of it is missing."""
    own = _text(line, "Price"), _text(line, "SpotPrice")
    if _text(line, "InstanceType"):
        return [own[0]], [own[1]]
    host_type = _GCP_L4_HOSTS.get(gpus, "") if name == "L4" else _GCP_HOSTS.get(name, "").format(gpus)
    if (name, gpus) == ("A100", 16):
        host_type = "a2-megagpu-16g"
    host = hosts.get((host_type, _zone(line)))
    return None if host is None else ([own[0], host[0]], [own[1], host[1]])


def _gcp_hosts(lines: Iterable[_Line]) -> _Hosts:
    return {
        (_text(line, "InstanceType"), _zone(line)): (_text(line, "Price"), _text(line, "SpotPrice"))
        for line in lines
        if not _text(line, "AcceleratorName")
    }


def _zone(line: _Line) -> str:
    return _text(line, "AvailabilityZone") or _text(line, "Region")


def _gpu(line: _Line, name: str, gpus: int) -> str | None:
    told_name, memory_gb = _gpu_info(_text(line, "GpuInfo"))
    plan = _text(line, "UpstreamCloudId")
    form = "PCIE" if _HYPERSTACK_PCIE.fullmatch(plan) else f"{_text(line, 'InstanceType')} {plan} {told_name}"
    bare_gb = _BARE_GB.get(name)
    if bare_gb is None or (memory_gb is not None and gpus == 1):
        return gpu_id_of_offer(name, form, memory_gb, gpus)
    # Two A100 with 80 GiB: two of 40 or of 80? Where both exist the name decides.
    told = (memory_gb, memory_gb / gpus) if memory_gb is not None else (bare_gb,)
    fits = any(abs(gb - bare_gb) < bare_gb / 8 for gb in told)
    return gpu_id_of_offer(name, form, bare_gb if fits else memory_gb, 1 if fits else gpus)


@lru_cache(4096)  # a catalogue repeats them for each data centre
def _gpu_info(text: str) -> tuple[str, float | None]:
    """(name, GiB of one GPU or of all) out of GpuInfo; ("", None) where it says nothing."""
    try:
        said = json.loads(text) if '"' in text else ast.literal_eval(text or "{}")
        first = said["Gpus"][0]
        size_mib = finite_positive(float(first["MemoryInfo"]["SizeInMiB"]))
        return str(first.get("Name", "")), None if size_mib is None else size_mib / 1024
    except (
        ValueError,
        SyntaxError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        OverflowError,
        MemoryError,
        RecursionError,
    ):
        return "", None


def _owner(line: _Line, provider: str) -> str:
    """Prime Intellect's instance types begin with who owns the machine: nebius__8xH100_80GB__128__1600."""
    owner, parted, _ = _text(line, "InstanceType").partition("__")
    return f"{provider}/{owner}" if provider == "primeintellect" and parted else provider


def _is_zero(parts: list[str]) -> bool:
    try:
        return all(float(part) == 0 for part in parts)
    except ValueError:
        return False


def _text(line: _Line, column: str) -> str:
    return (line.get(column) or "").strip()
