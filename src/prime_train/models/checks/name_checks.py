"""Compares tensor names with the names that the architecture needs. Pure, from the headers alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prime_train.models.read.config import ModelConfigFile
from prime_train.models.read.model_files import Weights
from prime_train.models.read.safetensors_header import is_embedding, is_head, is_vision
from prime_train.registry.tensor_names import TensorNames, tensor_names


class NameFault(NamedTuple):
    """Names that fit nothing. `found` is an example, "" if nothing is like the name that is `missing`.

    `base_only`: the names only lack the root of the architecture. transformers adds it, and vLLM does not.
    """

    missing: str
    found: str
    others: int
    base_only: bool = False

    @property
    def what(self) -> str:
        more = f" (and {self.others} more)" if self.others else ""
        return f"{self.missing} is missing{more}" + (f": {self.found} is there instead" if self.found else "")


def find_name_fault(weights: Weights, config: ModelConfigFile) -> NameFault | None:
    """The fault in the decoder's names; None if they fit, or the architecture's names are not known.

    Beside a vision encoder the root has many spellings, so nothing is compared.
    """
    names = tensor_names(config.text_type)
    if names is None or config.has_vision or not weights.groups:
        return None
    stored = [group.name for group in weights.groups if not is_vision(group.name)]
    lacking = _lacking(names, stored)
    if not lacking:
        return None
    without_root = _lacking(names, [f"{names.root}{name}" for name in stored if not is_head(name)])
    base_only = not without_root
    if base_only and names.prefix_optional:
        return None
    return NameFault(lacking[0], _similar(lacking[0], stored), len(lacking) - 1, base_only)


def _lacking(names: TensorNames, stored: Iterable[str]) -> list[str]:
    """Modules without a tensor, quantised or not. Embedding and head count if they are there by another name."""
    stored = list(stored)
    modules = [name.rpartition(".")[0] for name in stored]
    wanted = list(names.modules())
    wanted += [f"{names.root}{names.embedding}"] if any(is_embedding(name) for name in stored) else []
    wanted += [names.head] if any(is_head(name) for name in stored) else []
    return [f"{module}.weight" for module in wanted if module not in modules]


def _similar(wanted: str, stored: Iterable[str]) -> str:
    """The stored name that ends as the wanted one does, or begins so; "" if there is none."""
    last = wanted.split(".")[-2]
    found = [name for name in stored if name.endswith(wanted) or wanted.endswith(name)]
    return next(iter(found or [name for name in stored if f".{last}." in f".{name}"]), "")
