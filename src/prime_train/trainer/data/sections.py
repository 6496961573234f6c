"""Cuts a source's only document into sections, so that a part of it can be held out. Reads no file itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prime_train.core.errors import UserError
from prime_train.trainer.data.sources import Documents, documents_of
from prime_train.trainer.origin import Origin

SECTION_CHARACTERS = 2**16  # about 16,000 tokens: longer than most sequences, and a thousand fit easily in memory


def open_documents(origin: Origin[Documents], held_out_ratio: float) -> Documents:
    """The documents of a source; for a single document its sections, the last `held_out` of them held out."""
    documents = origin.open()
    if documents.count != 1:
        return documents
    (text,) = documents.texts([0])
    if not text.strip():
        return documents  # the tokenising raises the error, as with many documents
    cut = _cut(text, held_out_ratio)
    if cut is None:
        raise UserError(
            what=f"its only document is too short to split: {len(text.split())} words",
            where=origin.name,
            why="its beginning is for training and its end is held out to measure the loss",
            fix="give more text",
        )
    train, held_out = list(_sections(text, 0, cut)), list(_sections(text, cut, len(text)))
    return documents_of(train + held_out, held_out=len(held_out))


def _cut(text: str, held_out_ratio: float) -> int | None:
    """Start of the held-out end: after a line end or a space, with two words on both sides; None where impossible.

    Two words are at least two tokens, so there is a token to predict. A line end is preferred, but not one that is
    far away, for example in one long line under a title.
    """
    two_words = re.match(r"\s*\S+\s+\S+", text)
    if two_words is None:
        return None
    low, high = two_words.end(), len(text.rsplit(None, 2)[0]) + 1
    wanted = min(max(low, round(len(text) * (1 - held_out_ratio))), high)

    def nearest(mark: str) -> int | None:
        behind = (text.rfind(mark, low, wanted) + 1, text.find(mark, wanted, high) + 1)
        return min((place for place in behind if place), key=lambda place: abs(place - wanted), default=None)

    line, space = nearest("\n"), nearest(" ")
    if line is None or (space is not None and abs(line - wanted) > len(text) / 4):
        return space
    return line


def _sections(text: str, begin: int, end: int) -> Iterator[str]:
    """All characters [begin, end) in sections, cut after a line end or a space where possible."""
    while begin < end:
        stop = min(begin + SECTION_CHARACTERS, end)
        if stop < end:
            stop = text.rfind("\n", begin, stop) + 1 or text.rfind(" ", begin, stop) + 1 or stop
        yield text[begin:stop]
        begin = stop
