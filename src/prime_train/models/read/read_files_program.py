"""Program: reads the small files of a model and the headers of its weights, and prints one JSON object.

A stuck mount or server blocks it, so the caller sets a deadline. Only huggingface_hub itself reads the token.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from prime_train.models.read.hub import read_hub
from prime_train.models.read.model_files import ModelFiles, ReadFault, RefusedRead, to_json
from prime_train.models.read.read_folder import read_folder


def main() -> None:
    """Standard input is a JSON object: name, folder or "", revision, offline, scratch, timeout_s."""
    request: dict[str, Any] = json.load(sys.stdin)
    found: ModelFiles | RefusedRead
    if request["folder"]:
        folder = Path(request["folder"])
        try:
            found = read_folder(request["name"], "folder", folder)
        except OSError as error:
            found = RefusedRead(ReadFault.UNREADABLE, f"{error.filename}: {error.strerror}")
    else:
        found = read_hub(
            request["name"], request["revision"], Path(request["scratch"]), request["offline"], request["timeout_s"]
        )
    output = {"refused": list(found)} if isinstance(found, RefusedRead) else to_json(found)
    print(json.dumps(output))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
