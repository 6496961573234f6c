"""Reads the weights with which the risk of a GPU is estimated: the shipped ones, or those of a user's file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli

from prime_train.core.errors import UserError
from prime_train.core.outside import MARK_BYTES, OutsideError, read_bytes
from prime_train.registry.gpus import read_table

LARGEST = 100.0  # of a weight: exp() of some of them still fits into a float
_NUMBERS = ("bias", "suspect_above", "returned_above")


@dataclass(frozen=True, slots=True)
class RiskModel:
    """A logistic estimate. `weights` by the name of the signal."""

    bias: float
    weights: Mapping[str, float]
    suspect_above: float = 0.3
    returned_above: float = 0.9

    def estimate(self, signals: Mapping[str, float]) -> float:
        """The risk of a failure within 24 hours, between 0 and 1."""
        total = self.bias + sum(self.weights.get(name, 0.0) * value for name, value in signals.items())
        return 1.0 / (1.0 + math.exp(-max(-500.0, min(500.0, total))))


@cache
def shipped_model() -> RiskModel:
    """The weights of registry/gpu_risk.toml."""
    table = read_table("gpu_risk.toml")
    return RiskModel(weights=dict(table["weights"]), **{name: table[name] for name in _NUMBERS})


def read_model(path: Path) -> RiskModel:
    """The weights of a file, with the shipped ones for names that it leaves out. Raises UserError."""
    try:
        return parse_model(tomli.loads(read_bytes(path, MARK_BYTES).decode("utf-8")))
    except (OSError, ValueError, RecursionError) as error:  # a text that is no UTF-8 or TOML is a ValueError
        what = error.what if isinstance(error, OutsideError) else getattr(error, "strerror", None) or str(error)
        why = "the risk of each GPU is computed with its weights"
        fix = "a file of the form of registry/gpu_risk.toml, or without prime_train.gpu_risk.model the shipped weights"
        raise UserError(f"it is no model of risks: {what}", str(path), why, fix) from None


def parse_model(table: Mapping[str, Any]) -> RiskModel:
    """The model of a parsed file. Raises ValueError for anything that is not known, and for no number."""
    shipped, weights = shipped_model(), table.get("weights", {})
    if table.get("version") != 1:
        raise ValueError("version is not 1")
    if not isinstance(weights, dict):
        raise ValueError("weights is no table")
    unknown = {*table} - {*_NUMBERS, "version", "weights", "sources"} | ({*weights} - {*shipped.weights})
    if unknown:
        raise ValueError(f"{min(unknown)!r:.80} is not known; the signals are {', '.join(shipped.weights)}")
    numbers = {name: _read_number(name, table.get(name, getattr(shipped, name))) for name in _NUMBERS}
    if not 0 < numbers["suspect_above"] <= numbers["returned_above"] < 1:
        raise ValueError("0 < suspect_above <= returned_above < 1 does not hold")
    read = {name: _read_number(name, value) for name, value in weights.items()}
    if (least := min(read, key=lambda name: read[name], default="")) and read[least] < 0:
        raise ValueError(f"{least} is below 0, and each signal is a sign of trouble")
    return RiskModel(weights={**shipped.weights, **read}, **numbers)


def _read_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise ValueError(f"{name} = {value!r:.40} is no number between -{LARGEST:g} and {LARGEST:g}")
    return float(value)


def write_text(model: RiskModel) -> str:
    """The model as a file that `read_model` takes."""
    lines = ["version = 1", *(f"{name} = {getattr(model, name):.6f}" for name in _NUMBERS), "", "[weights]"]
    return "\n".join([*lines, *(f"{name} = {value:.6f}" for name, value in sorted(model.weights.items())), ""])
