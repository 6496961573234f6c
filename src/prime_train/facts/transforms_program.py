"""Program for the run's interpreter: prints what each transformation of documents does with the first documents."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from prime_train.core.errors import UserError
from prime_train.facts.data_lengths_program import PlacedRows, text_of

DOCUMENTS = 2  # of each source
SAMPLE = "A document.\nIt has two lines.\n"  # where no document is on this machine


def main() -> None:
    request = json.load(sys.stdin)
    documents = [*find_documents(request["sources"])] or [("a sample", SAMPLE)]
    print(json.dumps({"trials": [try_one(name, documents) for name in request["names"]]}))  # noqa: T201


def find_documents(sources: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """(place, text) of the first documents of each source."""
    for source in sources:
        for place, row in islice(PlacedRows(source["files"]), DOCUMENTS):
            text = text_of(row, source["columns"])
            if text:
                yield place, text


def try_one(name: str, documents: list[tuple[str, str]]) -> dict[str, str]:
    """The first fault of a transformation; empty without one."""
    trainer = importlib.import_module("prime_train.trainer.data.transforms")
    try:
        loaded = tuple(trainer.load_transforms((name,)).values())
        for place, text in documents:
            trainer.change(text, loaded, place)
    except UserError as error:
        return {"where": error.where, "what": error.what, "why": error.why, "fix": error.fix}
    return {}


if __name__ == "__main__":
    main()
