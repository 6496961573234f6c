"""Program for the run's interpreter: loads a tokenizer and prints the tokens of some texts as JSON.

Uses the tokenizers package for a tokenizer.json, and transformers only without one, because its import takes seconds.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

_ROUND_TRIP = "Hello, world! 3.14 is no 42.\n\tdef f(x): return x\u00e9\u6f22\u5b57\U0001f642"


def tokenize(request: dict[str, Any]) -> dict[str, Any]:
    """`request`: folder, texts by name. Returns {"unable": why}, {"fault": why} or size, highest, ids and restored."""
    folder = Path(request["folder"])
    encode: Any
    try:
        if (folder / "tokenizer.json").is_file():
            fast = importlib.import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
            numbers = fast.get_vocab(with_added_tokens=True).values()

            def encode(text: str) -> list[int]:
                return list(fast.encode(text, add_special_tokens=False).ids)

            restored = fast.decode(encode(_ROUND_TRIP), skip_special_tokens=False)
        else:
            load = importlib.import_module("transformers").AutoTokenizer.from_pretrained
            slow = load(str(folder), local_files_only=True, trust_remote_code=False)
            numbers = slow.get_vocab().values()

            def encode(text: str) -> list[int]:
                return list(slow.encode(text, add_special_tokens=False))

            restored = str(slow.decode(encode(_ROUND_TRIP), skip_special_tokens=False))
    except ImportError as error:
        return {"unable": str(error)}
    except Exception as error:  # tokenizers raises bare Exceptions: the text is the result
        return {"fault": f"{type(error).__name__}: {error}"[:500]}
    return {
        "size": len(numbers),
        "highest": max(numbers, default=-1),
        "restored": restored.strip() == _ROUND_TRIP.strip(),
        "ids": {name: encode(text) for name, text in request["texts"].items()},
    }


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: a module in it must not stand in for a package
    print(json.dumps(tokenize(json.load(sys.stdin))))  # noqa: T201 - the answer
