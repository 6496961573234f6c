"""Sets the variables of a shell: `name=value`, `export`, `local`, and `read` from a heredoc. Runs nothing."""

from __future__ import annotations

from collections.abc import Sequence

from prime_train.config.foreign.shell.expand import MOST_PIECES, Expander
from prime_train.config.foreign.shell.state import ShellState
from prime_train.config.foreign.shell.trace import ShellCommand
from prime_train.config.foreign.shell.tree import RawWord, Redirect, VariableAssignment
from prime_train.config.foreign.shell.values import Piece, Pieces, Value, Word, WordArray, open_piece

_BLANKS = " \t\n"
_CHANGES_VALUES = frozenset("ilunt")  # flags of `declare` with which the value is not the one that is written
_READS_ALL = (["-r", "-d", ""], ["-d", "", "-r"], ["-rd", ""])  # read -r -d ''
Locals = dict[str, Value | None]  # what the variables of a function had before; None for nothing


def assign(expander: Expander, assignment: VariableAssignment) -> Value:
    """Sets a variable and returns its value."""
    name, state = assignment.name, expander.state
    unknown = open_piece(f"${name}", expander.source.place(assignment.offset))
    if isinstance(assignment.value, RawWord):
        value: Value | None = None if assignment.subscript else expander.scalar(assignment.value)
    else:
        value = expander.array(assignment.value)
    if assignment.appends and value is not None:
        value = _append(state.get(name), value, unknown)
    if value is None:
        state.forget_array(name)
        return (unknown,)
    expander.set(name, value)
    return value


def declare(
    expander: Expander, command: ShellCommand, written: Sequence[RawWord | VariableAssignment], local: Locals | None
) -> None:
    """Applies `export`, `declare` and the like. `local` has what the variables of the function around had before."""
    state, words = expander.state, command.words
    assignments = [each for each in written if isinstance(each, VariableAssignment)]
    if command.name == "local" and local is None:  # bash refuses it here, unless a function around sources this text
        state.forget(assignment.name for assignment in assignments)
        return
    if expander.source.path:
        words = tuple(word.elsewhere() for word in words)
    flags = "".join(word.text for word in words[1:] if word.text.startswith("-"))
    before = local if command.name not in ("export", "readonly") and "g" not in flags else None
    for assignment in assignments:
        if before is not None:
            before.setdefault(assignment.name, state.values.get(assignment.name))
        assign(expander, assignment)
    bare = _declare_all(state, words, [assignment.name for assignment in assignments])
    if before is not None:
        for name in bare:
            before.setdefault(name, state.values.get(name))
        state.forget(bare)


def read_heredoc(expander: Expander, words: Sequence[Word], redirects: Sequence[Redirect]) -> None:
    """`read -r -d '' NAME <<EOF` gives the whole text to a variable, without the blanks around it."""
    *flags, name = [word.literal for word in words] or [None]
    if name is None or flags not in _READS_ALL or not expander.state.splits_as_usual:
        return
    text = heredoc_text(expander, redirects)
    if text is not None:
        expander.set(name, _stripped(text))


def heredoc_text(expander: Expander, redirects: Sequence[Redirect]) -> Pieces | None:
    """The text behind `<<`; None for a command without it."""
    here = next((each for each in redirects if each.heredoc >= 0), None)
    return None if here is None else expander.scalar(expander.source.heredocs[here.heredoc].word)


def files_named(expander: Expander, command: ShellCommand, redirects: Sequence[Redirect]) -> list[Word]:
    """The files into which `cat` or `tee` write what they get."""
    if command.name == "tee":
        return [word for word in command.words[1:] if not word.text.startswith("-")]
    if command.name != "cat" or len(command.words) > 1:
        return []
    return [word for each in redirects if each.operator in (">", ">|") for word in expander.words(each.target)]


def _declare_all(state: ShellState, words: Sequence[Word], assigned: Sequence[str]) -> list[str]:
    """Applies `export`, `declare` and the like; the assignments in it were made. Returns the names without a value."""
    command = words[0].text
    flags = "".join(word.text[1:] for word in words[1:] if word.text.startswith("-"))
    names, bare = list(assigned), list[str]()
    for word in words[1:]:
        text = word.literal
        if text is None:  # export $LINE
            state.forget_all()
        elif "=" in text:
            name, _, _ = text.partition("=")
            state.set(name, word.behind(len(name) + 1).pieces)
            names.append(name)
        elif not text.startswith("-"):
            names.append(text)
            bare.append(text)
    if command == "export" or "x" in flags:
        change = state.exported.difference_update if "n" in flags else state.exported.update
        change(names)
    if command != "export" and not _CHANGES_VALUES.isdisjoint(flags):
        state.forget(names)
        state.fixed.update(names)
    if command == "readonly" or "r" in flags:
        state.fixed.update(names)
    return bare


def _stripped(pieces: Pieces) -> Pieces:
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


def _append(before: Value | None, added: Value, unknown: Piece) -> Value | None:
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
