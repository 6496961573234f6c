"""Program: reads the small files of a model and the headers of its weights, and prints one JSON object.

A stuck mount or server blocks it, so the caller sets a deadline. Only huggingface_hub itself reads the token.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prime_train.core import outside
from prime_train.core.outside import MODEL_BYTES
from prime_train.models import safetensors_header
from prime_train.models.model_files import Fault, ModelFiles, Refused, Unread, Weights, front_matter, to_json
from prime_train.models.safetensors_header import HeaderError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_CARD_BYTES = 20_000


def read_folder(name: str, origin: str, folder: Path, revision: str = "") -> ModelFiles:
    """A model in a local folder or in the cache. Raises OSError if the folder cannot be listed."""
    sizes = {
        path.relative_to(folder).as_posix(): path.stat().st_size  # follows the links of the cache
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
    unread = tuple(
        Unread(file, Fault.UNREADABLE, "permission denied") for file in sizes if not os.access(folder / file, os.R_OK)
    )
    card = folder / "README.md"
    text = read_card(card) if card.name in sizes and os.access(card, os.R_OK) else ""
    return ModelFiles(name, origin, folder, revision, sizes, unread, _weights(folder, sizes), front_matter(text))


def read_card(path: Path) -> str:
    """The beginning of a model card. Raises OSError."""
    with outside.open_regular(path) as file:
        return file.read(_CARD_BYTES).decode("utf-8", "replace")


def _weights(folder: Path, sizes: dict[str, int]) -> Weights | None:
    faults: list[str] = []
    headers = []
    for file in _weight_files(folder, sizes, faults):
        if file not in sizes:
            faults.append(f"{file} is missing: the index names it")
            continue
        try:
            header = _read_header(folder / file)
        except (HeaderError, OSError) as error:
            faults.append(f"{file}: {error}")
            continue
        if header.file_bytes != sizes[file]:
            faults.append(f"{file} has {sizes[file]} bytes, and its header describes {header.file_bytes}")
        headers.append(header)
    return safetensors_header.summarise(headers, faults) if headers or faults else None


def _weight_files(folder: Path, sizes: dict[str, int], faults: list[str]) -> Iterator[str]:
    """The weight files: those in the index, else model.safetensors, else every safetensors file."""
    if INDEX in sizes:
        try:
            yield from safetensors_header.shards(outside.read_json(folder / INDEX, MODEL_BYTES))
        except (ValueError, AttributeError, OSError) as error:
            faults.append(f"{INDEX} is not valid: {error}")
    elif SINGLE in sizes:
        yield SINGLE
    else:
        yield from (file for file in sizes if file.endswith(".safetensors"))


def _read_header(path: Path) -> safetensors_header.Header:
    with outside.open_regular(path) as file:
        size = safetensors_header.length(file.read(safetensors_header.LENGTH_BYTES))
        content = file.read(size)
    if len(content) < size:
        raise HeaderError(f"the file ends within its header, after {len(content)} of {size} bytes")
    return safetensors_header.parse(content)


def main() -> None:
    """Standard input is a JSON object: name, folder or "", revision, offline, scratch, timeout_s."""
    request: dict[str, Any] = json.load(sys.stdin)
    found: ModelFiles | Refused
    if request["folder"]:
        folder = Path(request["folder"])
        try:
            found = read_folder(request["name"], "folder", folder)
        except OSError as error:
            found = Refused(Fault.UNREADABLE, f"{error.filename}: {error.strerror}")
    else:
        from prime_train.models.hub import read_hub

        found = read_hub(
            request["name"], request["revision"], Path(request["scratch"]), request["offline"], request["timeout_s"]
        )
    output = {"refused": list(found)} if isinstance(found, Refused) else to_json(found)
    print(json.dumps(output))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
