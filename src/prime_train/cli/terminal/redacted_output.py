"""Masks secrets in everything that a command prints, and fits its messages to the terminal, in one place for all
modules. Writes no file."""

from __future__ import annotations

import io
import sys
from typing import TextIO

from prime_train.core.redaction import redact

# A shorter value may be a key of a JSON document or an option. The modules that quote programs mask those, too.
_SHORTEST = 8


class RedactedStream(io.TextIOBase):
    """A text stream in front of another one. Each text is masked as it is written, so a token must be in one text.

    `fits`: lines are broken between words to the width of a terminal. Standard output is not, because some results are
    files and documents, which a break would change.
    """

    def __init__(self, stream: TextIO, *, fits: bool = False) -> None:
        self._stream = stream
        self._fits = fits
        self._hidden: tuple[str, ...] | None = None

    def write(self, text: str) -> int:
        """Write the masked text. Raises TypeError for bytes, by which typer recognises a text stream."""
        if not isinstance(text, str):
            raise TypeError("text only: bytes would leave with their secrets")
        if self._hidden is None:
            from prime_train.core.own_secrets import own_secrets  # here: nothing is printed by many starts

            self._hidden = tuple(value for value in own_secrets() if len(value) >= _SHORTEST)
        masked = redact(text, self._hidden)
        if self._fits and self._stream.isatty():
            from prime_train.cli.terminal.render import fit_terminal  # here: only a terminal needs it

            masked = fit_terminal(masked, self._stream)
        self._stream.write(masked)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property in io.TextIOBase's stub, too
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors


def install() -> None:
    """Put a masking stream before standard output and standard error; a closed one stays None."""
    if sys.stdout is not None:
        sys.stdout = RedactedStream(sys.stdout)
    if sys.stderr is not None:
        sys.stderr = RedactedStream(sys.stderr, fits=True)
