"""Texts and values that a script makes at run time, with the place of each of their pieces. Pure."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from prime_train.config.foreign.shell.expand import MOST_PIECES
from prime_train.config.foreign.shell.trace import ScriptText
from prime_train.config.foreign.shell.values import Piece, Pieces, Value, Word, WordArray

_BLANKS = " \t\n"
OPEN_NAME = "_not_known_"  # begins the names of the variables that stand for open pieces in such a text


def text_of(pieces: Pieces) -> tuple[ScriptText, dict[str, Piece]]:
    """The script that a quoted text is, and the variables in it that stand for its open pieces."""
    texts = [f"${{{OPEN_NAME}{number}}}" if piece.is_open else piece.text for number, piece in enumerate(pieces)]
    starts = [0, *accumulate(len(text) for text in texts)]

    def place(offset: int) -> tuple[int, int]:
        number = min(bisect_right(starts, offset) - 1, len(pieces) - 1)
        behind = pieces[number].behind(0 if pieces[number].is_open else offset - starts[number])
        return behind.line, behind.column

    opened = {f"{OPEN_NAME}{number}": piece for number, piece in enumerate(pieces) if piece.is_open}
    return ScriptText("".join(texts), place), opened


def stripped(pieces: Pieces) -> Pieces:
    """The pieces without the blanks around them."""
    kept = list(pieces)
    while len(kept) > 1 and not kept[-1].is_open and not kept[-1].text.strip(_BLANKS):
        kept.pop()
    first = kept[0]
    if not first.is_open:
        kept[0] = first.behind(len(first.text) - len(first.text.lstrip(_BLANKS)))
    if not kept[-1].is_open:
        kept[-1] = kept[-1]._replace(text=kept[-1].text.rstrip(_BLANKS))
    return tuple(kept)


def append(before: Value | None, added: Value, unknown: Piece) -> Value | None:
    """The value of `name+=added`; None if it has another kind than before."""
    if isinstance(added, WordArray):
        if before is None:
            return added
        if not isinstance(before, WordArray):
            before = WordArray((Word((unknown,), many=True),))
        words = (*before.words, *added.words)
        return WordArray(words) if sum(len(word.pieces) for word in words) <= MOST_PIECES else None
    if isinstance(before, WordArray):
        return None
    value = (*(before or (unknown,)), *added)
    return value if len(value) <= MOST_PIECES else (unknown,)
