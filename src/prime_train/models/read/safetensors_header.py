"""Parses the header of a safetensors file: dtype and shape of its tensors. Reads no weights, opens no file.

Source: huggingface.co/docs/safetensors, Format: 8 bytes of little-endian length, then a JSON object of that length.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from prime_train.core.outside import parse_json
from prime_train.models.read.model_files import TensorGroup, Weights

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
# Bits of one number. Source: safetensors, enum Dtype.
BITS = {
    name: bits
    for bits, names in (
        (64, "F64 I64 U64 C64"),
        (32, "F32 I32 U32"),
        (16, "F16 BF16 I16 U16"),
        (8, "F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I8 U8 BOOL"),
        (6, "F6_E2M3 F6_E3M2"),
        (4, "F4"),
    )
    for name in names.split()
}
_BLOCK = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_VISION = re.compile(
    r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_encoder|multi_modal_projector|mm_projector)\."
)
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|embed_in|wte|tok_embeddings|word_embeddings|embedding)\.weight$")
HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output|output_layer)\.weight$")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_MAX_GROUPS = 2000  # of the published models, the one with the most has 60


class HeaderError(ValueError):
    """The file is not a complete safetensors file; the message is the reason."""


class TensorHeader(NamedTuple):
    """(name, dtype, shape) of each tensor of one file, and the size that the file must have.

    `starts` maps the names of the embedding and the head to the place of their first byte.
    """

    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]
    file_bytes: int
    starts: Mapping[str, int] = MappingProxyType({})


def length(start: bytes) -> int:
    """The length of the header, from the first bytes of a file. Raises HeaderError."""
    if len(start) < LENGTH_BYTES:
        raise HeaderError(f"it has {len(start)} bytes, fewer than the {LENGTH_BYTES} of the header length")
    size = int.from_bytes(start[:LENGTH_BYTES], "little")
    if not 2 <= size <= MAX_HEADER_BYTES:
        raise HeaderError(f"its header length is {size} bytes: it is not a safetensors file")
    return size


def parse(content: bytes) -> TensorHeader:
    """The header, from its JSON text. Raises HeaderError."""
    try:
        table = parse_json(content)
    except ValueError:
        raise HeaderError("its header is not JSON") from None
    if not isinstance(table, dict):
        raise HeaderError("its header is not a JSON object")
    tensors: list[tuple[str, str, tuple[int, ...]]] = []
    spans: list[tuple[int, int, str]] = []
    for name, about in table.items():
        if name == "__metadata__":
            continue
        tensors.append((name, *_tensor(name, about)))
        spans.append((*about["data_offsets"], name))
    front = LENGTH_BYTES + len(content)
    starts = {name: front + start for start, _, name in spans if _EMBEDDING.search(name) or HEAD.search(name)}
    return TensorHeader(tuple(tensors), front + _end(spans), starts)


def _end(spans: list[tuple[int, int, str]]) -> int:
    """The end of the last tensor. Raises HeaderError unless each tensor begins where another one ends.

    Source: safetensors, Metadata.validate, which refuses the file otherwise.
    """
    end = 0
    for start, stop, name in sorted(spans):
        if start != end:
            raise HeaderError(f"{name[:80]} begins at byte {start} of the data, and the tensor before it ends at {end}")
        end = stop
    return end


def _tensor(name: str, about: Any) -> tuple[str, tuple[int, ...]]:
    try:
        dtype, shape, (start, end) = about["dtype"], tuple(about["shape"]), about["data_offsets"]
        whole = all(type(number) is int and number >= 0 for number in (*shape, start, end))
    except (TypeError, KeyError, ValueError):
        raise HeaderError(f"its header has no valid entry for {name[:80]}") from None
    if not whole or dtype not in BITS:
        raise HeaderError(f"its header has {name[:80]} with dtype {dtype}, shape {list(shape)}")
    if (end - start) * 8 != math.prod(shape) * BITS[dtype]:
        raise HeaderError(f"{name[:80]} has {end - start} bytes, which does not match {dtype} {list(shape)}")
    return dtype, shape


def summarise(headers: Iterable[TensorHeader], faults: Iterable[str] = (), head_differs: bool | None = None) -> Weights:
    """The summary of all files of a model."""
    by_dtype: Counter[str] = Counter()
    files = layers = 0
    embedding: tuple[int, ...] = ()
    groups: dict[str, _Group] = defaultdict(_Group)
    for header in headers:
        files += 1
        for name, dtype, shape in header.tensors:
            count = math.prod(shape)
            by_dtype[dtype] += count
            block = _BLOCK.search(name)
            number = int(block[1]) if block else -1
            if len(groups) <= _MAX_GROUPS:
                groups[_NUMBER.sub("*", name)].add(dtype, shape, number)
            if is_vision(name):
                continue
            layers = max(layers, number + 1)
            if _EMBEDDING.search(name) and len(shape) == 2:
                embedding = max(embedding, shape)
    stored_bytes = sum(math.ceil(count * BITS[dtype] / 8) for dtype, count in by_dtype.items())
    found = tuple(group.value(name) for name, group in groups.items()) if len(groups) <= _MAX_GROUPS else ()
    return Weights(
        files, by_dtype.total(), stored_bytes, dict(by_dtype), layers, embedding, tuple(faults), found, head_differs
    )


class _Group:
    """Collects the tensors of a TensorGroup."""

    def __init__(self) -> None:
        self._shapes: set[tuple[str, tuple[int, ...]]] = set()
        self._blocks: dict[int, tuple[int, int]] = {}

    def add(self, dtype: str, shape: tuple[int, ...], block: int) -> None:
        self._shapes.add((dtype, shape))
        tensors, numbers = self._blocks.get(block, (0, 0))
        self._blocks[block] = (tensors + 1, numbers + math.prod(shape))

    def value(self, name: str) -> TensorGroup:
        blocks = tuple((block, *counts) for block, counts in sorted(self._blocks.items()))
        return TensorGroup(name, tuple(sorted(self._shapes)), blocks)


def is_vision(name: str) -> bool:
    """Whether a tensor belongs to a vision encoder or its projector."""
    return _VISION.search(name) is not None


def is_embedding(name: str) -> bool:
    return _EMBEDDING.search(name) is not None and not is_vision(name)


def is_head(name: str) -> bool:
    return HEAD.search(name) is not None and not is_vision(name)


def absent_tensors(index: Mapping[str, Any], headers: Mapping[str, TensorHeader]) -> list[str]:
    """The faults of an index that names tensors which their file does not have. `headers`: those that were read."""
    stored = {file: {name for name, _, _ in header.tensors} for file, header in headers.items()}
    absent = [
        (name, file)
        for name, file in index["weight_map"].items()
        if isinstance(file, str) and file in stored and name not in stored[file]
    ]
    if not absent:
        return []
    name, file = min(absent)
    more = f", and {len(absent) - 1} more tensors" if len(absent) > 1 else ""
    return [f"model.safetensors.index.json names {name[:80]} in {file}, which does not have it{more}"]


def shards(index: Mapping[str, Any]) -> tuple[str, ...]:
    """The files listed in a model.safetensors.index.json. Raises HeaderError if it lists none."""
    weight_map = index.get("weight_map")
    files = {file for file in weight_map.values() if isinstance(file, str)} if isinstance(weight_map, dict) else set()
    if not files:
        raise HeaderError("model.safetensors.index.json lists no file")
    return tuple(sorted(files))
