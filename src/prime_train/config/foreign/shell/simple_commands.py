"""Parses the commands of a bash script that have no others inside: assignments, words, redirects and heredocs."""

from __future__ import annotations

import re

from prime_train.config.foreign.shell.tree import (
    Heredoc,
    Literal,
    RawWord,
    Redirect,
    Simple,
    Unreadable,
    VariableAssignment,
)
from prime_train.config.foreign.shell.word_reader import WordReader

DECLARATIONS = frozenset({"export", "declare", "typeset", "local", "readonly"})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]\n]{0,200}\])?(\+?)=", re.ASCII)
_REDIRECT = re.compile(r"(?:\d{1,9}|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|<(?!\()|>>|>\||>&|>(?!\())|(&>>|&>)", re.ASCII)


class CommandReader:
    """Reads commands. `heredocs` are those that were met; the text of one in `pending` begins at the next line end."""

    def __init__(self, read: WordReader) -> None:
        self._read = read
        self.heredocs: list[Heredoc] = []
        self.pending: list[tuple[int, str, bool, bool]] = []  # number, delimiter, whether quoted, whether tabs go

    def skip_lines(self) -> None:
        """Steps over blanks and line ends, and behind a line end over the heredocs that begin there."""
        read = self._read
        read.skip_blanks()
        while read.peek() == "\n":
            read.at += 1
            pending, self.pending = self.pending, []
            for number, delimiter, quoted, strips_tabs in pending:
                self.heredocs[number] = read.heredoc(delimiter, quoted=quoted, strips_tabs=strips_tabs)
            read.skip_blanks()

    def simple(self) -> Simple:
        read, start = self._read, self._read.at
        assignments: list[VariableAssignment] = []
        words: list[RawWord | VariableAssignment] = []
        redirects: list[Redirect] = []
        declares = False
        while True:
            read.skip_blanks()
            if (redirect := self.redirect()) is not None:
                redirects.append(redirect)
            elif (declares or not words) and (assignment := self._assignment()) is not None:
                if words:
                    words.append(assignment)
                else:
                    assignments.append(assignment)
            elif read.at_word():
                word = read.word()
                declares = declares or (not words and read.text[word.offset : word.end] in DECLARATIONS)
                words.append(word)
            else:
                break
        if not (assignments or words or redirects):
            raise Unreadable(f"{read.peek() or 'the end'} is not expected here", read.at)
        return Simple(tuple(assignments), tuple(words), tuple(redirects), start, read.at)

    def _assignment(self) -> VariableAssignment | None:
        read, start = self._read, self._read.at
        found = _ASSIGNMENT.match(read.text, read.at, read.end)
        if found is None:
            return None
        read.at = found.end()
        name, index, appends = found.group(1), found.group(2) or "", bool(found.group(3))
        if read.peek() != "(":
            return VariableAssignment(name, index, appends, read.word_or_nothing(), start)
        read.at += 1
        items: list[RawWord] = []
        while True:
            self.skip_lines()
            if read.peek() == ")":
                read.at += 1
                return VariableAssignment(name, index, appends, tuple(items), start)
            items.append(read.word())

    def redirect(self) -> Redirect | None:
        read = self._read
        found = _REDIRECT.match(read.text, read.at, read.end)
        if found is None:
            return None
        operator = found.group(1) or found.group(2)
        read.at = found.end()
        read.skip_blanks()
        target = read.word()
        if operator not in ("<<", "<<-"):
            return Redirect(operator, target)
        texts = [part.text for part in target.parts if isinstance(part, Literal)]
        if len(texts) != len(target.parts):
            raise Unreadable("the end of a heredoc is not plain", target.offset)
        quoted = any(isinstance(part, Literal) and part.quoted for part in target.parts)
        self.pending.append((len(self.heredocs), "".join(texts), quoted, operator == "<<-"))
        self.heredocs.append(Heredoc(RawWord((), read.at, read.at), read.at))  # read at the end of the line
        return Redirect(operator, target, len(self.heredocs) - 1)
