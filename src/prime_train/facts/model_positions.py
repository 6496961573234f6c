"""Reads a model's number of positions from its config.json in a folder or in the hub's cache. Makes no request."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prime_train.core import outside
from prime_train.core.outside import MODEL_BYTES
from prime_train.facts.facts import ModelContext, NotKnown
from prime_train.spec.decoder_size import scaled_positions

# The keys that vLLM reads; it uses the smallest value. Source: vLLM 0.10, config/__init__.py, _get_and_verify_max_len.
_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_target_positions",
)


def read_contexts(names: Iterable[str]) -> tuple[ModelContext, ...] | NotKnown:
    """One entry for each model with a local config.json that has its positions."""
    wanted = sorted(set(names))
    found = [context for name in wanted if (context := _read(name)) is not None]
    if wanted and not found:
        return NotKnown(f"{', '.join(wanted)}: no config.json on this machine has the positions")
    return tuple(found)


def find_file(name: str, file: str) -> Path | None:
    """A file of a model, in the folder `name` or in the hub's cache; None if it is in neither."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder / file if (folder / file).is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        there = try_to_load_from_cache(name, file, cache_dir=os.environ.get("HF_HUB_CACHE"))
    except HFValidationError:
        return None
    return Path(there) if isinstance(there, str) else None


def _read(name: str) -> ModelContext | None:
    config = find_file(name, "config.json")
    if config is None:
        return None
    try:
        values = outside.read_json(config, MODEL_BYTES)
    except (OSError, ValueError):
        return None  # another rule reports an unreadable folder
    if not isinstance(values, dict):
        return None
    text = values.get("text_config")
    parts = [values, text] if isinstance(text, dict) else [values]
    tokens = [part[key] for part in parts for key in _KEYS if _is_count(part.get(key))]
    if not tokens:
        return None
    scaled = [scaling for part in parts if (scaling := _scaling(part)) is not None]
    limits = {scaled_positions(min(tokens), scaling) for scaling in scaled}
    kinds = "".join(str(part.get("model_type")) for part in parts)
    if "gemma3" in kinds:  # its positions include the scaling already (vLLM, _get_and_verify_max_len)
        limits = {min(tokens)}
    return ModelContext(name, min(tokens), bool(scaled), config, limits.pop() if len(limits) == 1 and scaled else None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _scaling(part: dict[str, Any]) -> dict[str, Any] | None:
    """The rope scaling that extends the positions, or None."""
    for key in ("rope_scaling", "rope_parameters"):  # the latter since transformers 5
        scaling = part.get(key)
        if isinstance(scaling, dict) and scaling:
            kind = scaling.get("rope_type", scaling.get("type"))
            nested = any(isinstance(below, dict) for below in scaling.values())
            if kind not in ("default", None) or "factor" in scaling or nested:
                return scaling
    return None
