"""Makes text from outside (samples, logs, errors) safe to print. Pure."""

from __future__ import annotations

import re

# C0 and C1 but for newline and tab: an escape sequence in a sample or a log line would act on the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` with a replacement character for each control character; newlines and tabs stay."""
    return _CONTROL.sub("\ufffd", text)
