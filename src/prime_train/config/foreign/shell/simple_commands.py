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
    WordPart,
)
from prime_train.config.foreign.shell.word_reader import WordReader

DECLARATIONS = frozenset({"export", "declare", "typeset", "local", "readonly"})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]\n]{0,200}\])?(\+?)=", re.ASCII)
_REDIRECT = re.compile(r"(?:\d{1,9}|\{[A-Za-z_]\w*\})?(<<<|<<-|<<|<>|<&|<(?!\()|>>|>\||>&|>(?!\())|(&>>|&>)", re.ASCII)
_IN_HEREDOC = "$`\\"  # what a backslash takes the meaning from


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
                self.heredocs[number] = self._heredoc(delimiter, quoted=quoted, strips_tabs=strips_tabs)
            read.skip_blanks()

    def _heredoc(self, delimiter: str, *, quoted: bool, strips_tabs: bool) -> Heredoc:
        """The lines from here to the delimiter; without one, the rest of the text, as bash does."""
        read = self._read
        start = end = read.at
        while True:
            line_end = read.line_end(end)
            line = read.text[end:line_end]
            is_delimiter = (line.lstrip("\t") if strips_tabs else line) == delimiter
            if is_delimiter or line_end >= read.end:
                break
            end = line_end + 1
        end = end if is_delimiter else read.end
        parts: tuple[WordPart, ...] = (Literal(read.text[start:end], start, True),)
        if not quoted:
            outer, read.end = read.end, end
            parts = read.quoted_parts("", _IN_HEREDOC)
            read.end = outer
        read.at = min(line_end + 1, read.end)
        if strips_tabs:
            parts = tuple(_without_tabs(part, is_first=part is parts[0]) for part in parts)
        return Heredoc(RawWord(parts, start, end), start)

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

    def test_words(self) -> tuple[RawWord, ...]:
        """The words up to `]]`, which is stepped over."""
        read, words = self._read, list[RawWord]()
        while True:
            self.skip_lines()
            if read.peek(2) == "]]":
                read.at += 2
                return tuple(words)
            if read.at < read.end and read.peek() in "()<>|&;":
                read.at += 1
            else:
                words.append(read.word())

    def skip_patterns(self) -> None:
        """Steps over the patterns of a branch of `case`."""
        read = self._read
        if read.peek() == "(":
            read.at += 1
        while True:
            read.skip_blanks()
            if read.peek() == ")":
                read.at += 1
                return
            if read.peek() == "|":
                read.at += 1
            else:
                read.word()

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


def _without_tabs(part: WordPart, *, is_first: bool) -> WordPart:
    """A part of a `<<-` heredoc without the tabs at the beginning of its lines."""
    if not isinstance(part, Literal):
        return part
    text = part.text.lstrip("\t") if is_first else part.text
    return part._replace(text=re.sub(r"\n\t+", "\n", text))
