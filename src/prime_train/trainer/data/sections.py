"""Parts the only document of a source into sections, of which the last are held out. Never sees a token.

A single `input.txt` is a usual corpus. Its beginning is trained on and its end measures the loss; both are cut into
sections at line ends, so that what is tokenised and packed at once stays small however large the file is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from prime_train.errors import UserError
from prime_train.trainer.data.sources import Documents, Origin

SECTION_CHARACTERS = 2**16  # some 16,000 tokens: longer than most sequences, and a thousand fit in memory many times


def open_documents(origin: Origin, held_out_ratio: float) -> Documents:
    """The documents of a source; of a single one its sections, `held_out` of which are at its end."""
    documents = origin.open()
    if documents.count != 1:
        return documents
    (text,) = documents.texts([0])
    if not text.strip():
        return documents  # as with many documents, who tokenises it finds that there is no text
    cut = _cut(text, held_out_ratio)
    if cut is None:
        raise UserError(
            what=f"its only document is too short to part: {len(text.split())} words",
            where=origin.name,
            why="its beginning is trained on and its end is held out to measure the loss",
            fix="give more text",
        )
    train, held_out = list(_sections(text, 0, cut)), list(_sections(text, cut, len(text)))
    found = train + held_out
    return Documents(len(found), lambda indices: [found[index] for index in indices], held_out=len(held_out))


def _cut(text: str, held_out_ratio: float) -> int | None:
    """Where the held-out end begins: behind a line end, else behind a space, with two words on both sides.

    Two words are two tokens at least, so that there is something to predict. A line end that is far off, as in text
    that is one long line under a title, counts for less than a space. None = there is no such place.
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
    """The characters [begin, end), none left out; a section ends behind a line end or a space where there is one."""
    while begin < end:
        stop = min(begin + SECTION_CHARACTERS, end)
        if stop < end:
            stop = text.rfind("\n", begin, stop) + 1 or text.rfind(" ", begin, stop) + 1 or stop
        yield text[begin:stop]
        begin = stop
