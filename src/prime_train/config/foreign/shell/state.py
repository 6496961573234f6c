"""The variables of a shell at one point of a script: which values are certain there. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from prime_train.config.foreign.shell.values import Piece, Pieces, Value, Word, WordArray, same_value

# bash sets these itself, or takes a value for them that is not the one that was assigned
_MAGIC = re.compile(
    r"S?RANDOM|SECONDS|LINENO|E?UID|GROUPS|PPID|(OLD)?PWD|EPOCH\w+|FUNCNAME|DIRSTACK|PIPESTATUS|SHELLOPTS|BASH\w*"
    r"|COMP_\w+|HISTCMD|OPT(ARG|IND|ERR)|REPLY|MAPFILE|COPROC|(HOST|MACH|OS)TYPE|HOSTNAME|SHLVL|COLUMNS|LINES|IFS|PATH|_"
)
_SET_BY_NAME = re.compile(
    r"\b(?:read|mapfile|readarray|getopts|unset|let|for|select|declare|local|typeset|readonly|export|printf)\b([^\n;|&]*)"
)
_SET_BY_SIGN = re.compile(r"(?<![\w.$-])([A-Za-z_]\w*)(?:\[[^\]\n]{0,200}\])?\s{0,9}(?:[-+*/%&|^:]|<<|>>)?=", re.ASCII)
_COUNTED = re.compile(r"([A-Za-z_]\w*)\s{0,9}(?:\+\+|--)|(?:\+\+|--)\s{0,9}([A-Za-z_]\w*)", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WORD = re.compile(r"[\w.:-]+")
_LOADS_CODE = re.compile(r"\beval\b|\bsource\b|(?<![\w./-])\.\s")
_CHANGES_ARGUMENTS = re.compile(r"\b(?:shift|set)\b")
OPEN_NAME = "_not_known_"  # begins the names of the variables that stand for what is not known in a text
UNKNOWN = (Piece("", 1, 1, is_open=True),)
UNKNOWN_ARGUMENTS = (Word(UNKNOWN, many=True),)


class ShellState:
    """Variables, functions and arguments. A variable without an entry was not set by the script: the environment may.

    `arguments` are `$1`, `$2` and so on; None for those that the script itself gets.
    """

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.exported: set[str] = set()
        self.fixed: set[str] = set()  # readonly, or with a type that changes what is assigned
        self.functions: dict[str, Any] = {}  # the definition and its source; None: one of several, or not known
        self.arguments: tuple[Word, ...] | None = None
        self.exports_all = False
        self.splits_as_usual = True  # whether IFS is the usual one
        self.patterns_stay = True  # whether a pattern that no file matches stays as it is
        self.lost = False  # whether any variable may have any value

    @classmethod
    def with_environment(cls, environment: Mapping[str, Pieces]) -> ShellState:
        """The state in which a shell of its own begins."""
        state = cls()
        state.values.update(environment)
        state.exported.update(environment)
        return state

    def environment(self, given: Mapping[str, Value]) -> dict[str, Word]:
        """What a command gets; `given` are the assignments in front of it."""
        values = {name: self.values[name] for name in self.exported if name in self.values} | dict(given)
        return {name: Word(value) for name, value in values.items() if not isinstance(value, WordArray)}

    def copy(self) -> ShellState:
        other = ShellState()
        other.__dict__.update(self.__dict__)
        other.values, other.functions = dict(self.values), dict(self.functions)
        other.exported, other.fixed = set(self.exported), set(self.fixed)
        return other

    def size(self) -> int:
        return 1 + (len(self.values) + len(self.functions)) // 16

    def get(self, name: str) -> Value | None:
        """The value; None for a variable that the script did not set."""
        if _MAGIC.fullmatch(name):
            return UNKNOWN
        return self.values.get(name, UNKNOWN if self.lost else None)

    def set(self, name: str, value: Value) -> None:
        if name == "IFS":
            self.splits_as_usual = False
        before = self.values.get(name)
        # a plain value for an array replaces only its first item
        is_item = not isinstance(value, WordArray) and (isinstance(before, WordArray) or before is _UNKNOWN_ARRAY)
        self.values[name] = _UNKNOWN_ARRAY if is_item else UNKNOWN if name in self.fixed else value
        if self.exports_all:
            self.exported.add(name)

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            before = self.values.get(name)
            is_array = isinstance(before, WordArray) or before is _UNKNOWN_ARRAY
            self.values[name] = _UNKNOWN_ARRAY if is_array else UNKNOWN
            self.splits_as_usual &= name != "IFS"

    def forget_array(self, name: str) -> None:
        self.values[name] = _UNKNOWN_ARRAY

    def forget_all(self) -> None:
        """After `source` and the like. It is taken not to change how words are split: few scripts would survive it."""
        self.lost = True
        self.forget(list(self.values))
        self.functions = dict.fromkeys(self.functions)
        self.arguments = UNKNOWN_ARGUMENTS

    def forget_set_in(self, text: str) -> int:
        """Forgets every variable that a piece of script may set. Returns the characters that this looked at."""
        if _LOADS_CODE.search(text):
            self.forget_all()
            return len(text)
        names, looked_at = names_set(text), len(text)
        if OPEN_NAME in text or not self.functions.keys().isdisjoint(_WORD.findall(text)):
            looked_at += self.forget_set_by_functions()
        self.forget(names)
        if "IFS" in names or "shopt" in text:
            self.splits_as_usual = self.patterns_stay = False
        if _CHANGES_ARGUMENTS.search(text):
            self.arguments = UNKNOWN_ARGUMENTS
        return looked_at

    def forget_set_by_functions(self) -> int:
        """Forgets what any function may set. Returns the characters of all of them."""
        texts = [text_of_function(function) for function in self.functions.values() if function is not None]
        for text in texts:
            self.forget(names_set(text))
        return sum(map(len, texts))

    def merge(self, other: ShellState) -> None:
        """Keeps what holds in both states: after an `if`, either of its branches may have run."""
        for name in self.values.keys() | other.values.keys():
            mine, theirs = self.values.get(name), other.values.get(name)
            if mine is not None and theirs is not None and (mine is theirs or same_value(mine, theirs)):
                continue
            if isinstance(mine, WordArray) and isinstance(theirs, WordArray):
                self.values[name] = _same_beginning(mine, theirs)
            elif isinstance(theirs, WordArray) or theirs is _UNKNOWN_ARRAY:
                self.forget_array(name)
            else:
                self.forget((name,))
        for name in self.functions.keys() | other.functions.keys():
            if self.functions.get(name) != other.functions.get(name):
                self.functions[name] = None
        self.exported &= other.exported
        self.fixed |= other.fixed
        self.arguments = self.arguments if self.arguments == other.arguments else UNKNOWN_ARGUMENTS
        self.exports_all &= other.exports_all
        self.splits_as_usual &= other.splits_as_usual
        self.patterns_stay &= other.patterns_stay
        self.lost |= other.lost


_UNKNOWN_ARRAY: Pieces = (Piece("", 1, 1, is_open=True), Piece("", 1, 1, is_open=True))


def _same_beginning(one: WordArray, other: WordArray) -> WordArray:
    """The words that both arrays begin with, then any number of words that are not known."""
    count = 0
    while count < min(len(one.words), len(other.words)) and _are_same(one.words[count], other.words[count]):
        count += 1
    return WordArray((*one.words[:count], Word(UNKNOWN, many=True)))


def _are_same(one: Word, other: Word) -> bool:
    return one is other or (one.literal is not None and one.literal == other.literal)


def text_of_function(function: Any) -> str:
    """The definition of a function, as it is written."""
    definition, source = function
    text: str = source.text[definition.offset : definition.end]
    return text


def names_set(text: str) -> set[str]:
    """All names that a piece of script may set, and some that it only mentions."""
    names = set(_SET_BY_SIGN.findall(text))
    names.update(name for pair in _COUNTED.findall(text) for name in pair if name)
    for arguments in _SET_BY_NAME.findall(text):
        names.update(_NAME.findall(arguments))
    return names
