"""What a shell variable and a word may hold: text that is known, and pieces that are not. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Piece(NamedTuple):
    """A run of text with its place in the file. The text of an open piece is what is written, not what it becomes."""

    text: str
    line: int
    column: int
    is_open: bool = False
    is_default: bool = False  # from `${NAME:-text}`: the environment may replace it
    splits: bool = False  # from an expansion outside of quotes: blanks part it into words
    is_bare: bool = False  # written outside of quotes: it may be a pattern

    def at(self, place: tuple[int, int]) -> Piece:
        return self._replace(line=place[0], column=place[1])

    def elsewhere(self) -> Piece:
        """The piece for another file, where it gets the place at which it is used."""
        return self.at((0, 0))

    def behind(self, count: int) -> Piece:
        """What is left behind the first `count` characters."""
        skipped = self.text[:count]
        lines = skipped.count("\n")
        column = count - skipped.rfind("\n") if lines else self.column + count
        return self._replace(text=self.text[count:], line=self.line + lines, column=column)


Pieces = tuple[Piece, ...]


class Word(NamedTuple):
    """A word that a command gets. With `many`, it stands for any number of words that are not known."""

    pieces: Pieces
    many: bool = False

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def literal(self) -> str | None:
        """The text; None if a part of it is not known."""
        return None if self.is_open else self.text

    @property
    def base(self) -> str:
        """The name of the file that the word names, "" if it is not known."""
        return (self.literal or "").rpartition("/")[2]

    @property
    def is_open(self) -> bool:
        return self.many or any(piece.is_open for piece in self.pieces)

    @property
    def is_default(self) -> bool:
        return any(piece.is_default for piece in self.pieces)

    @property
    def line(self) -> int:
        return self.pieces[0].line if self.pieces else 1

    @property
    def column(self) -> int:
        return self.pieces[0].column if self.pieces else 1

    def elsewhere(self) -> Word:
        return Word(tuple(piece.elsewhere() for piece in self.pieces), self.many)

    def behind(self, count: int) -> Word:
        """The word without its first `count` characters."""
        pieces = list(self.pieces)
        while len(pieces) > 1 and count >= len(pieces[0].text):
            count -= len(pieces.pop(0).text)
        return Word((pieces[0].behind(count), *pieces[1:]), self.many)


class WordArray(NamedTuple):
    words: tuple[Word, ...]


Value = Pieces | WordArray


def open_piece(written: str, place: tuple[int, int], *, splits: bool = False) -> Piece:
    return Piece(written, *place, is_open=True, splits=splits)


def joined(words: Iterable[Word]) -> Pieces:
    """The words with a blank between each two, as `"${NAME[*]}"` gives them."""
    pieces: list[Piece] = []
    for word in words:
        if pieces:
            pieces.append(Piece(" ", word.line, word.column))
        pieces.extend([open_piece(word.text, (word.line, word.column))] if word.many else word.pieces)
    return tuple(pieces)


def elsewhere(value: Value) -> Value:
    """A value that another file sets."""
    if isinstance(value, WordArray):
        return WordArray(tuple(word.elsewhere() for word in value.words))
    return tuple(piece.elsewhere() for piece in value)


def is_known(value: Value) -> bool:
    if isinstance(value, WordArray):
        return not any(word.is_open for word in value.words)
    return not any(piece.is_open for piece in value)


def same_value(one: Value, other: Value) -> bool:
    """Whether two values are certainly the same text."""
    if not (is_known(one) and is_known(other)):
        return False
    if isinstance(one, WordArray) and isinstance(other, WordArray):
        return [word.text for word in one.words] == [word.text for word in other.words]
    return not isinstance(one, WordArray) and not isinstance(other, WordArray) and Word(one).text == Word(other).text
