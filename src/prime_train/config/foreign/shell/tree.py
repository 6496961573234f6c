"""What a bash script consists of: statements, words and the parts of words, each with its offset. Values only."""

from __future__ import annotations

from typing import NamedTuple


class Unreadable(Exception):
    """The text is no bash from this offset on, or nests too deeply."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what)
        self.what = what
        self.offset = offset


class Literal(NamedTuple):
    """Text that stands for itself. Unquoted text may still be a pattern of file names, braces or a home folder."""

    text: str
    offset: int
    quoted: bool


class Parameter(NamedTuple):
    """`$name`, or `${name}` with an operator and its argument. `operator` is "?" for one that is not read here."""

    name: str
    operator: str  # "", :- - := = :+ + [@] [*] ?
    argument: tuple[WordPart, ...]
    written: str
    offset: int
    quoted: bool


class Substitution(NamedTuple):
    """The output of commands: `$(...)`, backticks, `<(...)`."""

    block: Block
    written: str
    offset: int
    quoted: bool


class Arithmetic(NamedTuple):
    """`$((...))`."""

    expression: str
    written: str
    offset: int
    quoted: bool


WordPart = Literal | Parameter | Substitution | Arithmetic


class RawWord(NamedTuple):
    """A word before its expansion."""

    parts: tuple[WordPart, ...]
    offset: int
    end: int


class VariableAssignment(NamedTuple):
    """`name=value`, `name+=value`, `name=(...)`; `subscript` is the text of `[...]`, "" without one."""

    name: str
    subscript: str
    appends: bool
    value: RawWord | tuple[RawWord, ...]
    offset: int


class Redirect(NamedTuple):
    """`> file` and the like. `heredoc` is the number of the heredoc behind `<<`, or -1."""

    operator: str
    target: RawWord
    heredoc: int = -1


class Simple(NamedTuple):
    """A command with its words. The arguments of `export` and the like may be assignments."""

    assignments: tuple[VariableAssignment, ...]
    words: tuple[RawWord | VariableAssignment, ...]
    redirects: tuple[Redirect, ...]
    offset: int
    end: int


class Compound(NamedTuple):
    """A statement with others inside.

    kind: `group`, `subshell`, `pipeline`, `background`, `and_or`, `if`, `loop`, `case`, `test`,
    `arithmetic`, `unread` for lines that are no bash.
    `blocks` are its parts in order; for `if`: condition, body, condition, body, ..., and the else body if there is one.
    """

    kind: str
    blocks: tuple[Block, ...]
    words: tuple[RawWord, ...]
    redirects: tuple[Redirect, ...]
    name: str  # the variable of a `for` loop, or the text of `((...))`
    offset: int
    end: int


class Function(NamedTuple):
    """A definition: its body runs where it is called."""

    name: str
    body: Statement
    offset: int
    end: int


Statement = Simple | Compound | Function
Block = tuple[Statement, ...]


class Heredoc(NamedTuple):
    """The text behind `<<`."""

    word: RawWord
    offset: int
