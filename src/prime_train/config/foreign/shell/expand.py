"""Expands the words of a command as bash does, as far as the script itself decides what they become. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from prime_train.config.foreign.shell.arithmetic import compute, names_changed
from prime_train.config.foreign.shell.state import UNKNOWN, ShellState
from prime_train.config.foreign.shell.trace import ScriptText
from prime_train.config.foreign.shell.tree import Arithmetic, Block, Literal, Parameter, RawWord, Substitution, WordPart
from prime_train.config.foreign.shell.values import (
    Piece,
    Pieces,
    Value,
    Word,
    WordArray,
    elsewhere,
    is_known,
    joined,
    open_piece,
)

MOST_PIECES = 2**12  # of a value; a script may double one in each line
_MOST_CHARS = 2**16
_BLANK_OR_NOT = re.compile(r"[ \t\n]+|[^ \t\n]+")
_HOME = re.compile(r"(?:^|[=:])~")


class Expander:
    """Expands words of a source in a state. `look_into` gets blocks in `$(...)`, `spend` what a value costs.

    In a file that the script sources, the value of a variable has the place at which it is used.
    """

    def __init__(
        self, state: ShellState, source: ScriptText, look_into: Callable[[Block], None], spend: Callable[[int], None]
    ) -> None:
        self.state = state
        self.source = source
        self._look_into = look_into
        self._spend = spend

    def set(self, name: str, value: Value) -> None:
        """Sets a variable, whose value may be used in another file."""
        self._spend(1 + len(value.words if isinstance(value, WordArray) else value))
        self.state.set(name, elsewhere(value) if self.source.path else value)

    def words(self, raw: RawWord) -> list[Word]:
        """The words that a written one becomes: none, one or more."""
        fields: list[list[Piece]] = [[]]
        is_list = False
        for part in raw.parts:
            if sum(map(len, fields)) > MOST_PIECES:
                return [Word((open_piece("...", self.source.place(raw.offset)),), many=True)]
            items = self._items(part)
            is_list = is_list or items is not None
            for number, item in enumerate([self._pieces(part)] if items is None else items):
                if number:
                    fields.append([])
                fields[-1].extend(self._placed(item, part, raw))
        if is_list and len(fields) == 1 and not any(piece.text or piece.is_open for piece in fields[0]):
            return []  # "${NAME[@]}" of an empty array
        found = [word for field in fields for word in self._split(field)]
        return [self._finish(word) for word in found]

    def scalar(self, raw: RawWord) -> Pieces:
        """The value that an assignment gives: one text, also with blanks in it."""
        pieces: list[Piece] = []
        for part in raw.parts:
            items = self._items(part)
            found = self._pieces(part) if items is None else joined(Word(tuple(item)) for item in items)
            pieces.extend(self._placed(found, part, raw))
        masked = "".join(piece.text if piece.is_bare else "\0" * len(piece.text) for piece in pieces)
        if _HOME.search(masked) or sum(len(piece.text) for piece in pieces) > _MOST_CHARS or len(pieces) > MOST_PIECES:
            return (open_piece(_written(pieces), self.source.place(raw.offset)),)
        return tuple(piece._replace(splits=False, is_bare=False) for piece in pieces) or (
            Piece("", *self.source.place(raw.offset)),
        )

    def _placed(self, pieces: Iterable[Piece], part: WordPart, raw: RawWord) -> Iterator[Piece]:
        is_value = bool(self.source.path) and isinstance(part, Parameter)
        for piece in pieces:
            yield piece.at(self.source.place(raw.offset)) if is_value or not piece.line else piece

    def array(self, items: Iterable[RawWord]) -> WordArray | None:
        """The words of `(...)`; None if they are given by index."""
        words: list[Word] = []
        for item in items:
            first = item.parts[0] if item.parts else None
            if isinstance(first, Literal) and not first.quoted and re.match(r"\[[^\n]*\]=", first.text):
                return None
            words.extend(self.words(item))
        return WordArray(tuple(words)) if sum(len(word.pieces) for word in words) <= MOST_PIECES else None

    def _items(self, part: WordPart) -> list[Pieces] | None:
        """The items of a list; None for a part that is one text."""
        if not isinstance(part, Parameter) or part.operator not in ("[@]", "[*]"):
            return None
        words = self._list(part)
        if words is None:
            return None
        if not part.quoted:
            return [tuple(piece._replace(splits=True) for piece in word.pieces) for word in words]
        if part.operator == "[*]":
            return [joined(words)] if self.state.splits_as_usual else None
        return [tuple(_opened(word, splits=True)) if word.many else word.pieces for word in words]

    def _list(self, part: Parameter) -> tuple[Word, ...] | None:
        """The words of an array or of the arguments; None if they are not known."""
        if part.name in ("@", "*"):
            return self.state.arguments
        value = self.state.get(part.name)
        if isinstance(value, WordArray):
            return value.words
        # a plain variable is a list of one
        return (Word(value),) if value is not None and is_known(value) else None

    def _pieces(self, part: WordPart) -> Pieces:
        place = self.source.place(part.offset)
        match part:
            case Literal(text, _, quoted):
                return (Piece(text, *place, is_bare=not quoted),)
            case Substitution():
                self._look_into(part.block)
                return (open_piece(part.written, place, splits=not part.quoted),)
            case Arithmetic():
                number = self.compute(part.expression)
                if number is None:
                    return (open_piece(part.written, place, splits=not part.quoted),)
                return (Piece(str(number[0]), *place, is_default=number[1]),)
            case Parameter():
                return self._parameter(part)

    def _parameter(self, part: Parameter) -> Pieces:
        value = self._lookup(part.name)
        if isinstance(value, WordArray):
            value = _first(value)
        is_unset = value is None and not self.state.lost and _can_be_set(part.name)
        text = "" if value is None else "".join(piece.text for piece in value if not piece.is_open)
        is_sure = value is not None and (bool(text) or is_known(value))
        match part.operator:
            case "" if value is not None:
                return self._stored(part, value)
            case ":-" | "-" | ":=" | "=" if value is not None and is_sure and (text or ":" not in part.operator):
                return self._stored(part, value)
            case ":-" | "-" | ":=" | "=" if is_sure or is_unset:
                return self._argument(part, is_default=is_unset)
            case ":+" | "+" if is_sure:
                return self._argument(part, is_default=False) if text or part.operator == "+" else ()
        is_list = part.operator in ("[@]", "[*]")
        return (open_piece(part.written, self.source.place(part.offset), splits=not part.quoted or is_list),)

    def _stored(self, part: Parameter, value: Pieces) -> Pieces:
        """The value of a variable as the pieces of a word."""
        nowhere = open_piece(part.written, self.source.place(part.offset))
        shown = (nowhere if piece.is_open and not piece.text else piece for piece in value)
        return tuple(piece._replace(splits=not part.quoted) for piece in shown)

    def _argument(self, part: Parameter, *, is_default: bool) -> Pieces:
        """The argument of `${NAME:-argument}`. What is in quotes there does not split."""
        pieces: list[Piece] = []
        for number, inner in enumerate(part.argument):
            if isinstance(inner, Literal):
                home = number == 0 and not inner.quoted and inner.text.startswith("~")
                pieces.append(
                    Piece(inner.text, *self.source.place(inner.offset), is_open=home, splits=not inner.quoted)
                )
                continue
            items = self._items(inner)
            pieces.extend(self._pieces(inner) if items is None else joined(Word(item) for item in items))
        pieces = pieces or [Piece("", *self.source.place(part.offset), splits=not part.quoted)]
        value = tuple(piece._replace(is_default=is_default or piece.is_default) for piece in pieces)
        if "=" in part.operator and not part.name.isdigit():
            self.set(part.name, tuple(piece._replace(splits=False) for piece in value))
            value = tuple(piece._replace(splits=not part.quoted) for piece in value)  # as $name, without the quotes
        return value

    def _lookup(self, name: str) -> Value | None:
        if name.isdigit() and name != "0":
            return _argument(self.state.arguments, int(name)) if len(name) < 4 else UNKNOWN
        return self.state.get(name) if _can_be_set(name) else None

    def compute(self, expression: str) -> tuple[int, bool] | None:
        """(value, whether it rests on a default) of an integer expression; None if it is not known.

        Forgets the variables that the expression changes.
        """
        changed = names_changed(expression)
        self.state.forget(changed)
        return None if changed else compute(expression, self._number)

    def _number(self, name: str) -> tuple[str, bool] | None:
        """(text, whether it is a default) of a variable; None if it is not known."""
        value = self.state.get(name)
        word = None if value is None or isinstance(value, WordArray) else Word(value)
        return None if word is None or word.literal is None else (word.literal, word.is_default)

    def _split(self, pieces: list[Piece]) -> list[Word]:
        """Parts the pieces at the blanks of those that split."""
        words: list[Word] = []
        current: list[Piece] = []
        many = False

        def finish() -> None:
            nonlocal current, many
            if current:
                words.append(Word(tuple(current), many))
            current, many = [], False

        for piece in pieces:
            if not piece.splits:
                current.append(piece)
            elif piece.is_open or not self.state.splits_as_usual:
                current.append(piece._replace(is_open=True))
                many = True
            else:
                rest = piece
                for token in _BLANK_OR_NOT.findall(piece.text):
                    if token[0] in " \t\n":
                        finish()
                    else:
                        current.append(rest._replace(text=token))
                    rest = rest.behind(len(token))
        finish()
        return words

    def _finish(self, word: Word) -> Word:
        """The word, or an open one if braces, a pattern or a home folder make others of it."""
        bare = "".join(piece.text if piece.is_bare else "\0" * len(piece.text) for piece in word.pieces)
        loose = "".join(
            piece.text if piece.is_bare or piece.splits else "\0" * len(piece.text) for piece in word.pieces
        )
        many = word.many or _has_braces(bare) or self._is_pattern(loose)
        too_long = len(bare) > _MOST_CHARS
        pieces = word.pieces
        if (many and not word.many) or too_long or _HOME.search(bare):
            pieces = tuple(_opened(word))
        return Word(tuple(piece._replace(splits=False, is_bare=False) for piece in pieces), many)

    def _is_pattern(self, loose: str) -> bool:
        """Whether it may become names of files. `key=[a,b]` does not: no file has such a name."""
        at = _pattern_at(loose)
        return at >= 0 and ("=" not in loose[:at] or not self.state.patterns_stay)


def _pattern_at(text: str) -> int:
    """Where a pattern of file names begins; -1 without one. Takes linear time, which a regex would not."""
    found = [at for at in (text.find("*"), text.find("?")) if at >= 0]
    opening = text.find("[")
    if 0 <= opening < text.rfind("]"):
        found.append(opening)
    return min(found, default=-1)


def _has_braces(text: str) -> bool:
    """Whether a text may hold `{a,b}` or `{1..3}`."""
    opening = text.find("{")
    if opening < 0:
        return False
    between = [at for at in (text.find(",", opening), text.find("..", opening)) if at >= 0]
    return bool(between) and text.find("}", min(between)) >= 0


def _written(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)[:200]


def _opened(word: Word, *, splits: bool = False) -> list[Piece]:
    return [open_piece(_written(word.pieces), (word.line, word.column), splits=splits)]


def _first(array: WordArray) -> Pieces:
    """The first item, which `$NAME` gives."""
    if not array.words:
        return ()
    return UNKNOWN if array.words[0].many else array.words[0].pieces


def _argument(arguments: tuple[Word, ...] | None, number: int) -> Pieces | None:
    """The value of `$1` and so on; None for an argument of the script itself."""
    if arguments is None:
        return None
    if any(word.many for word in arguments[:number]):
        return UNKNOWN
    return arguments[number - 1].pieces if number <= len(arguments) else ()


def _can_be_set(name: str) -> bool:
    """Whether it is a variable or an argument, and not one of `$?`, `$$`, `$0`."""
    return name[:1].isalpha() or name[:1] == "_" or (name.isdigit() and name != "0")
