"""Converts the text of a SkyPilot catalogue (vms.csv) into prices. Pure; opens no file.

Format (github.com/skypilot-org/skypilot-catalog, v8): the order of columns differs between clouds. Price and SpotPrice
are for the whole instance. A spot-only row has no Price; without spot, Vast writes 0.00 and RunPod the on-demand price.
GCP lists host and GPUs in different rows. GpuInfo is a Python or JSON dict whose memory is that of one GPU for some
clouds and of all GPUs for others.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from prime_train.prices.gpu_names import gpu_id_of_offer
from prime_train.prices.price import (
    Price,
    PriceFault,
    PriceRows,
    catch,
    count,
    finite_positive,
    gather_rows,
    number,
    per_gpu_hour,
)

_CUT_OFF = "the file is cut off, or is not a SkyPilot catalogue"
COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")
# SkyPilot's names without a memory size: V100 has 16 GB (the other is V100-32GB), A100 has 40.
_BARE_GB = {"V100": 16.0, "A100": 40.0}
# GCP's machine type for each GPU: sky/catalog/gcp_catalog.py@f00893d. N1 hosts vary and are left out.
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
_UNREADABLE = (ValueError, SyntaxError, LookupError, TypeError, AttributeError, OverflowError, MemoryError,
               RecursionError)  # fmt: skip
_HYPERSTACK_PCIE = re.compile(r"n3-[AH]100x\d")  # its SXM and NVLink variants have that in their names


def rows(text: str, shown: str, provider: str, as_of: str) -> PriceRows:
    """The prices of one cloud's catalogue. Raises Fault if the text is not a catalogue."""
    reader = csv.DictReader(io.StringIO(text))
    try:
        header = reader.fieldnames or []
        lines: list[tuple[int, _Line]] = [(reader.line_num, line) for line in reader]
    except csv.Error as error:
        raise PriceFault(f"{shown} line {reader.line_num}", f"not CSV: {error}", _CUT_OFF) from None
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        why = f"a SkyPilot catalogue has {', '.join(COLUMNS)}, in any order"
        raise PriceFault(f"{shown} line 1", f"no column {', '.join(missing)}", why)
    hosts = _gcp_hosts(line for _, line in lines)
    return gather_rows(
        item for number, line in lines for item in _prices(line, f"{shown} line {number}", provider, as_of, hosts)
    )


_Line = Mapping[str | None, "str | None"]
_Hosts = Mapping[tuple[str, str], tuple[str, str]]  # (InstanceType, zone) -> (Price, SpotPrice)


def _prices(line: _Line, where: str, provider: str, as_of: str, hosts: _Hosts) -> Iterator[Price | PriceFault | str]:
    """The prices of one line, on-demand and spot; a Fault; or why it is left out."""
    if None in line or None in line.values():
        yield PriceFault(where, "not the same number of columns as the header", _CUT_OFF)
        return
    name = _text(line, "AcceleratorName")
    if not name:
        return  # a machine without GPUs, as most lines
    gpus = catch(count, line["AcceleratorCount"], f"{where}, column AcceleratorCount")
    if isinstance(gpus, PriceFault):
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
    on_demand, spot = costs
    if spot == on_demand and all(spot):
        spot = [""]
        yield "spot price equal to the on-demand price: there is no spot"
    region, source = _text(line, "Region").strip(" ,"), f"SkyPilot catalogue, {provider}"
    for column, parts in (("Price", on_demand), ("SpotPrice", spot)):
        if not all(parts) or (column == "SpotPrice" and _is_zero(parts)):
            continue  # not offered
        usd = catch(_sum, parts, gpus, f"{where}, column {column}")
        if isinstance(usd, PriceFault):
            yield usd
        else:
            yield Price(_owner(line, provider), gpu, gpus, usd, column == "SpotPrice", region, source, as_of)


def _sum(parts: list[str], gpus: int, where: str) -> float:
    """USD per GPU hour of an offer whose price is the sum of `parts`. Raises Fault."""
    return round(per_gpu_hour(sum(number(part, where) for part in parts), gpus, where), 4)


def _costs(line: _Line, name: str, gpus: int, hosts: _Hosts) -> tuple[list[str], list[str]] | None:
    """The parts of the offer's Price and SpotPrice; None if a part is missing."""
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
    info_name, memory_gb = _gpu_info(_text(line, "GpuInfo"))
    plan = _text(line, "UpstreamCloudId")
    form = "PCIE" if _HYPERSTACK_PCIE.fullmatch(plan) else f"{_text(line, 'InstanceType')} {plan} {info_name}"
    bare_gb = _BARE_GB.get(name)
    if bare_gb is None or (memory_gb is not None and gpus == 1):
        return gpu_id_of_offer(name, form, memory_gb, gpus)
    # Two A100 with 80 GiB may be two of 40 or of 80 GB. If both exist, the name decides.
    sizes_gb = (memory_gb, memory_gb / gpus) if memory_gb is not None else (bare_gb,)
    fits = any(abs(gb - bare_gb) < bare_gb / 8 for gb in sizes_gb)
    return gpu_id_of_offer(name, form, bare_gb if fits else memory_gb, 1 if fits else gpus)


@lru_cache(4096)  # a catalogue repeats them for each data centre
def _gpu_info(text: str) -> tuple[str, float | None]:
    """(name, GiB of one GPU or of all) from GpuInfo; ("", None) if it is empty or unreadable."""
    try:
        info = json.loads(text) if '"' in text else ast.literal_eval(text or "{}")
        first = info["Gpus"][0]
        size_mib = finite_positive(float(first["MemoryInfo"]["SizeInMiB"]))
        return str(first.get("Name", "")), None if size_mib is None else size_mib / 1024
    except _UNREADABLE:
        return "", None


def _owner(line: _Line, provider: str) -> str:
    """Prime Intellect's instance types start with the owner of the machine: nebius__8xH100_80GB__128__1600."""
    owner, parted, _ = _text(line, "InstanceType").partition("__")
    return f"{provider}/{owner}" if provider == "primeintellect" and parted else provider


def _is_zero(parts: list[str]) -> bool:
    try:
        return all(float(part) == 0 for part in parts)
    except ValueError:
        return False


def _text(line: _Line, column: str) -> str:
    return (line.get(column) or "").strip()
