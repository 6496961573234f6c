"""Converts a SkyPilot catalogue (vms.csv) and the answers of price services into prices. Pure; opens no file.

Format of a catalogue (github.com/skypilot-org/skypilot-catalog, v8): the order of columns differs between clouds. Price
and SpotPrice are for the whole instance. A spot-only row has no Price; without spot, Vast writes 0.00 and RunPod the
on-demand price. GCP lists host and GPUs in different rows. GpuInfo is a Python or JSON dict whose memory is that of one
GPU for some clouds and of all GPUs for others.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

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
from prime_train.registry.gpus import gpu_id, gpu_id_of_offer

_GONE = frozenset(("unavailable", "out_of_stock"))
# Vast's names of the registry's cards, in the form that its filter needs.
VAST_NAMES = (
    *("A100_SXM4", "A100_PCIE", "H100_SXM", "H100_PCIE", "H100_NVL", "H200", "B200", "L40S", "L4", "A10"),
    *("RTX_4090", "RTX_5090", "RTX_3090", "RTX_A6000", "RTX_6000Ada", "RTX_PRO_6000_S", "RTX_PRO_6000_WS"),
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
_Line = Mapping[str | None, "str | None"]
_Hosts = Mapping[tuple[str, str], tuple[str, str]]  # (InstanceType, zone) -> (Price, SpotPrice)


def prime_intellect_offers(document: Any) -> list[tuple[str, Any]] | None:
    """(place, item) of each offer in an answer, in lists per GPU type, or in a list; None for anything else."""
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        return [(f"items[{index}]", item) for index, item in enumerate(document["items"])]
    if isinstance(document, dict) and document and all(_is_offers(offers) for offers in document.values()):
        return [(f"{kind}[{index}]", item) for kind, offers in document.items() for index, item in enumerate(offers)]
    if document and _is_offers(document):
        return [(f"[{index}]", item) for index, item in enumerate(document)]
    return None


def _is_offers(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and "gpuType" in item for item in value)


def prime_intellect_rows(found: Iterable[tuple[str, Any]], shown: str, source: str, as_of: str) -> PriceRows:
    """The prices of these offers. A price is for all GPUs of the offer; gpuMemory is that of one GPU or of all.

    Source: docs.primeintellect.ai/api-reference/check-gpu-availability and the models of its own client
    (PrimeIntellect-ai/prime, packages/prime/src/prime_cli/api/availability.py@2eeb7a5).
    """
    return gather_rows(catch(_prime_intellect_price, item, f"{shown} {place}", source, as_of) for place, item in found)


def _prime_intellect_price(item: Any, where: str, source: str, as_of: str) -> Price | str:
    match item:
        case {"gpuType": str(kind), "prices": {**prices}}:
            pass
        case _:
            raise PriceFault(where, "no gpuType, gpuCount and prices", "each offer needs them")
    gpus = count(item.get("gpuCount"), f"{where}.gpuCount")
    gpu = gpu_id_of_offer(kind, str(item.get("socket") or ""), finite_positive(item.get("gpuMemory")), gpus)
    refusal = _refusal(item, prices, kind, gpu)
    if refusal or gpu is None:
        return refusal
    field = "communityPrice" if prices.get("communityPrice") is not None else "onDemand"
    usd = per_gpu_hour(prices[field], gpus, f"{where}.prices.{field}")
    owner = str(item.get("provider") or "")
    region = ", ".join(str(item[key]) for key in ("country", "dataCenter") if item.get(key))
    provider = f"primeintellect/{owner}" if owner else "primeintellect"
    return Price(provider, gpu, gpus, round(usd, 4), item.get("isSpot") is True, region, source, as_of)


def _refusal(item: Mapping[str, Any], prices: Mapping[Any, Any], kind: str, gpu: str | None) -> str:
    """Why a valid offer is left out; "" if it is not."""
    if gpu is None:
        return f"{kind} is not in registry/gpus.toml"
    if str(item.get("stockStatus") or "").lower() in _GONE:
        return "not in stock"
    if prices.get("currency") not in (None, "USD"):
        return f"priced in {prices['currency']}, not in USD"
    if prices.get("communityPrice") is None and prices.get("onDemand") is None:
        return "without a price"
    return ""


def vast_offers(document: Any) -> list[tuple[str, Any]] | None:
    """(place, offer) of an answer, or of the output of `vastai search offers --raw`; None for anything else."""
    match document:
        case {"offers": [*found]}:
            return [(f"offers[{index}]", item) for index, item in enumerate(found)]
        case {"offers": {"gpu_name": _} as lone}:
            return [("offers", lone)]
        case [*found] if found and all(isinstance(item, dict) and "dph_total" in item for item in found):
            return [(f"[{index}]", item) for index, item in enumerate(found)]
    return None


def vast_rows(found: Iterable[tuple[str, Any]], shown: str, source: str, as_of: str) -> PriceRows:
    """The prices of these offers. Source: docs.vast.ai/api-reference/search/search-offers.

    dph_total is dollars per hour for the whole offer with all its GPUs and its disk; gpu_ram is MB of one GPU; is_bid
    marks offers that can be interrupted.
    """
    return gather_rows(catch(_vast_price, item, f"{shown} {place}", source, as_of) for place, item in found)


def _vast_price(item: Any, where: str, source: str, as_of: str) -> Price | str:
    match item:
        case {"gpu_name": str(name), "num_gpus": num_gpus, "dph_total": usd_per_hour}:
            pass
        case _:
            raise PriceFault(where, "no gpu_name, num_gpus and dph_total", "each offer needs them")
    gpus = count(num_gpus, f"{where}.num_gpus")
    memory_mb = finite_positive(item.get("gpu_ram"))
    gpu = gpu_id(name.replace("_", " "), "", None if memory_mb is None else memory_mb / 1024)
    if gpu is None:
        return f"{name} is not in registry/gpus.toml"
    if item.get("rentable") is False:
        return "not for rent"
    usd = per_gpu_hour(usd_per_hour, gpus, f"{where}.dph_total")
    region = str(item.get("geolocation") or "")
    return Price("vast", gpu, gpus, round(usd, 4), item.get("is_bid") is True, region, source, as_of)


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
