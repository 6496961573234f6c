"""Reads the words of a bash text: quotes, backslashes and dollars become parts. Expands nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

from prime_train.config.foreign.shell.tree import (
    Arithmetic,
    Block,
    Literal,
    Parameter,
    RawWord,
    Substitution,
    Unreadable,
    WordPart,
)

META = " \t\n;&|<>()"  # an unquoted word ends at these
_DEPTH = 60  # blocks and substitutions inside each other; each takes some of Python's stack
_PLAIN = re.compile(r"[^ \t\n;&|<>()\\'\"$`?*+@!]+")
_QUOTED_PLAIN = re.compile(r"[^\\\"$`}]+")
_ARGUMENT_PLAIN = re.compile(r"[^'\"$`\\}]+")
_PARAMETER = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", re.ASCII)
_SHORT_PARAMETER = re.compile(r"[A-Za-z_]\w*|[\d@*#?$!-]", re.ASCII)
_OPERATOR = re.compile(r"\[[@*]\](?=\})|:?[-=+]|(?=\})")
_ANSI_C = re.compile(r"\$'((?:[^'\\]|\\[\s\S])*)'")
_BACKTICKS = re.compile(r"`(?:[^`\\]|\\[\s\S])*`")
_BRACKET = re.compile(r"[()]")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_IN_QUOTES = '$`"\\'  # what a backslash takes the meaning from


class WordReader:
    """A text with the offset `at` of what is read next, up to `end`. `read_block` reads the inside of `$(...)`."""

    def __init__(self, text: str, read_block: Callable[[], Block]) -> None:
        self.text = text
        self.at = 0
        self.end = len(text)
        self._read_block = read_block
        self._depth = 0

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : min(self.at + length, self.end)]

    def starts(self, sign: str) -> bool:
        return self.text.startswith(sign, self.at, self.end)

    def step_over(self, sign: str) -> None:
        if not self.starts(sign):
            raise Unreadable(f"{sign} is missing", self.at)
        self.at += len(sign)

    def enter(self) -> None:
        """Counts a level of nesting; `leave` ends it."""
        self._depth += 1
        if self._depth > _DEPTH:
            raise Unreadable("it nests too deeply", self.at)

    def leave(self) -> None:
        self._depth -= 1

    def restart(self, offset: int) -> None:
        """Goes on with the line below an offset, outside of any block."""
        self.end = len(self.text)
        self.at = min(self.line_end(offset) + 1, self.end)
        self._depth = 0

    def skip_blanks(self) -> None:
        """Steps over blanks, continued lines and a comment. Call it only where a word may begin."""
        while self.at < self.end:
            char = self.text[self.at]
            if char in " \t":
                self.at += 1
            elif char == "\\" and self.starts("\\\n"):
                self.at += 2
            elif char == "#":
                self.at = self.line_end(self.at)
            else:
                return

    def line_end(self, start: int) -> int:
        found = self.text.find("\n", start, self.end)
        return self.end if found < 0 else found

    def at_word(self) -> bool:
        return self.at < self.end and (self.text[self.at] not in META or self.peek(2) in ("<(", ">("))

    def word(self) -> RawWord:
        """The word that begins here. Raises Unreadable if there is none."""
        if not self.at_word():
            raise Unreadable(f"{self.peek() or 'the end'} is not expected here", self.at)
        return self.word_or_nothing()

    def word_or_nothing(self) -> RawWord:
        start, parts = self.at, list[WordPart]()
        while self.at_word():
            char = self.text[self.at]
            found = _PLAIN.match(self.text, self.at, self.end)
            if found is not None:
                parts.append(Literal(found.group(), self.at, False))
                self.at = found.end()
            elif char in "<>":
                parts.append(self._substitution(quoted=True))
            elif char in "?*+@!" and self.peek(2)[1:] == "(":
                raise Unreadable("a pattern with brackets is not read", self.at)
            else:
                parts.extend(self._special(char))
        return RawWord(tuple(parts), start, self.at)

    def arithmetic_end(self, start: int) -> int:
        """The offset of the `))` that closes the `((` at `start`; -1 if these are two separate brackets."""
        if not self.text.startswith("((", start, self.end):
            return -1
        depth = 0
        for found in _BRACKET.finditer(self.text, start + 2, self.end):
            if found.group() == "(":
                depth += 1
            elif depth:
                depth -= 1
            else:
                return found.start() if self.text.startswith("))", found.start(), self.end) else -1
        return -1

    def _special(self, char: str) -> tuple[WordPart, ...]:
        """The parts at a quote, a dollar, a backslash or a sign of a pattern, outside of quotes."""
        start = self.at
        match char:
            case "'":
                close = self._close("'", start + 1)
                self.at = close + 1
                return (Literal(self.text[start + 1 : close], start + 1, True),)
            case '"':
                return self._double_quoted()
            case "$" if self.starts("$'"):
                return (self._ansi_c(),)
            case "$" if self.starts('$"'):
                self.at += 1
                return self._double_quoted()
            case "$":
                return (self._dollar(quoted=False),)
            case "`":
                return (self._backticks(quoted=False),)
        self.at += 1
        if char != "\\":
            return (Literal(char, start, False),)
        self.at = min(self.at + 1, self.end)
        escaped = self.text[start + 1 : self.at] or "\\"
        return () if escaped == "\n" else (Literal(escaped, start + 1, True),)

    def _double_quoted(self) -> tuple[WordPart, ...]:
        start = self.at
        self.at += 1
        first = Literal("", self.at, True)  # so that "" is a word, too
        parts = self.quoted_parts('"', _IN_QUOTES)
        if self.peek() != '"':
            raise Unreadable("a quote is not closed", start)
        self.at += 1
        return (first, *parts)

    def _close(self, sign: str, start: int) -> int:
        close = self.text.find(sign, start, self.end)
        if close < 0:
            raise Unreadable("a quote is not closed", start - 1)
        return close

    def quoted_parts(self, stops: str, escapable: str) -> tuple[WordPart, ...]:
        """The parts up to one of the signs `stops`, with the rules inside of double quotes."""
        parts: list[WordPart] = []
        while self.at < self.end:
            char = self.text[self.at]
            found = _QUOTED_PLAIN.match(self.text, self.at, self.end)
            if found is not None:
                parts.append(Literal(found.group(), self.at, True))
                self.at = found.end()
            elif char in stops:
                break
            elif char == "$":
                parts.append(self._dollar(quoted=True))
            elif char == "`":
                parts.append(self._backticks(quoted=True))
            elif self.starts("\\\n"):
                self.at += 2
            elif char == "\\" and self.at + 1 < self.end and self.text[self.at + 1] in escapable:
                parts.append(Literal(self.text[self.at + 1], self.at + 1, True))
                self.at += 2
            else:
                parts.append(Literal(char, self.at, True))
                self.at += 1
        return tuple(parts)

    def _ansi_c(self) -> WordPart:
        start = self.at
        found = _ANSI_C.match(self.text, start, self.end)
        if found is None:
            raise Unreadable("a quote is not closed", start)
        self.at = found.end()
        body = found.group(1)
        if any(escape[1] not in _ESCAPES for escape in re.findall(r"\\[\s\S]", body)):
            return Parameter("", "?", (), found.group(), start, True)
        return Literal(re.sub(r"\\([\s\S])", lambda escape: _ESCAPES[escape[1]], body), start + 2, True)

    def _dollar(self, *, quoted: bool) -> WordPart:
        start = self.at
        close = self.arithmetic_end(start + 1)
        if close >= 0:
            self.at = close + 2
            return Arithmetic(self.text[start + 3 : close], self.text[start : self.at], start, quoted)
        if self.starts("$("):
            return self._substitution(quoted=quoted)
        if self.starts("${"):
            return self._braced(quoted=quoted)
        if self.starts("$["):
            self.at = self._close("]", start + 2) + 1
            return Parameter("", "?", (), self.text[start : self.at], start, quoted)
        found = _SHORT_PARAMETER.match(self.text, start + 1, self.end)
        if found is None:
            self.at += 1
            return Literal("$", start, True)
        self.at = found.end()
        return Parameter(found.group(), _implied(found.group()), (), self.text[start : self.at], start, quoted)

    def _substitution(self, *, quoted: bool) -> Substitution:
        start = self.at
        self.at += 2
        block = self._read_block()
        self.step_over(")")
        return Substitution(block, self.text[start : self.at], start, quoted)

    def _backticks(self, *, quoted: bool) -> Substitution:
        """Has no statements, because the text in backticks loses a level of backslashes first."""
        start = self.at
        found = _BACKTICKS.match(self.text, start, self.end)
        if found is None:
            raise Unreadable("a quote is not closed", start)
        self.at = found.end()
        return Substitution((), found.group(), start, quoted)

    def _braced(self, *, quoted: bool) -> Parameter:
        start = self.at
        self.enter()
        self.at += 2
        name, operator = "", "?"
        found = _PARAMETER.match(self.text, self.at, self.end)
        if found is not None:
            name, self.at = found.group(), found.end()
            sign = _OPERATOR.match(self.text, self.at, self.end)
            if sign is not None:
                operator, self.at = sign.group() or _implied(name), sign.end()
        argument = self._quoted_argument() if quoted else self._argument()
        self.step_over("}")
        self.leave()
        return Parameter(name, operator, argument, self.text[start : self.at], start, quoted)

    def _argument(self) -> tuple[WordPart, ...]:
        """The parts up to the closing brace, outside of quotes: blanks belong to them."""
        parts: list[WordPart] = []
        while self.at < self.end and self.text[self.at] != "}":
            found = _ARGUMENT_PLAIN.match(self.text, self.at, self.end)
            if found is None:
                parts.extend(self._special(self.text[self.at]))
                continue
            parts.append(Literal(found.group(), self.at, False))
            self.at = found.end()
        return tuple(parts)

    def _quoted_argument(self) -> tuple[WordPart, ...]:
        """The parts up to the closing brace, inside of quotes: quotes in it are taken off."""
        parts: list[WordPart] = []
        while True:
            parts.extend(self.quoted_parts('"}', _IN_QUOTES + "}"))
            if self.peek() != '"':
                return tuple(parts)
            parts.extend(self._double_quoted())


def _implied(name: str) -> str:
    return {"@": "[@]", "*": "[*]"}.get(name, "")
