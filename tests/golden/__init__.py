"""Compares what is printed with the file that people and programs were promised.

`UPDATE_GOLDEN=1 pytest` writes the files anew; the difference is then read before it is committed.
"""

import json
import os
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


def same_as_golden(name: str, document: Any) -> None:
    """Assert that `document` is what tests/golden/NAME holds, keys in the same order."""
    same_text_as_golden(name, json.dumps(document, indent=1, ensure_ascii=False))


def same_text_as_golden(name: str, printed: str) -> None:
    """Assert that `printed` is what tests/golden/NAME holds."""
    path = _HERE / name
    text = printed + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
