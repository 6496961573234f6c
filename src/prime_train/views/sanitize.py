"""Makes text from outside (samples, logs, errors) safe to print. Pure."""

from __future__ import annotations

import re

# C0 and C1 except newline and tab, because an escape sequence in a sample or a log line would control the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def sanitize(text: str) -> str:
    """`text` with a replacement character for each control character except newlines and tabs."""
    return _CONTROL.sub("\ufffd", text)
