"""Converts the answers of price services into prices. Pure; takes parsed JSON, makes no request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prime_train.prices.gpu_names import gpu_id, gpu_id_of_offer
from prime_train.prices.price import (
    Price,
    PriceFault,
    PriceRows,
    catch,
    count,
    finite_positive,
    gather_rows,
    per_gpu_hour,
)

_GONE = frozenset(("unavailable", "out_of_stock"))


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


# Vast's names of the registry's cards, in the form that its filter needs.
VAST_NAMES = (
    *("A100_SXM4", "A100_PCIE", "H100_SXM", "H100_PCIE", "H100_NVL", "H200", "B200", "L40S", "L4", "A10"),
    *("RTX_4090", "RTX_5090", "RTX_3090", "RTX_A6000", "RTX_6000Ada", "RTX_PRO_6000_S", "RTX_PRO_6000_WS"),
)


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
