"""Parses a bash script into statements. Expands nothing and runs nothing.

A parser of its own, because the grammar that tree-sitter has for bash takes gigabytes, or ends the process, on some
kilobytes of brackets and pipes. This one takes time in proportion to the text, and stops where bash itself would stop
with a syntax error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from prime_train.config.foreign.shell.simple_commands import CommandReader
from prime_train.config.foreign.shell.tree import Block, Compound, Function, Heredoc, RawWord, Statement, Unreadable
from prime_train.config.foreign.shell.word_reader import WordReader

SCRIPT_CHARS = 1_000_000  # a launch script has kilobytes
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_IN = re.compile(r"in(?=[\s;])")
_FUNCTION = re.compile(
    r"function[ \t]+([^\s(){};&|<>]+)(?:[ \t]*\([ \t]*\))?|([^\s(){}<>;&|$'\"`=\\]+)[ \t]*\([ \t]*\)"
)
_RESERVED = re.compile(
    r"(if|then|elif|else|fi|while|until|do|done|for|select|case|esac|function|time|coproc|\{|\}|!|\[\[)(?=[\s;&|<>()]|$)"
)
_MOST_FAULTS = 20
_PLACEHOLDER = re.compile(r"<([A-Za-z][\w .-]{0,60})>", re.ASCII)
_NO_NAME = re.compile(r"\W", re.ASCII)
_CLOSERS = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})


class SyntaxTree(NamedTuple):
    """The statements, and the heredocs by their number.

    From the offset `unread` on, bash would run nothing, because of `fault`; it is None without a fault.
    """

    block: Block
    heredocs: tuple[Heredoc, ...]
    unread: int | None
    fault: str = ""


def parse(text: str) -> SyntaxTree:
    """The statements of a script. Raises nothing: behind a fault, it goes on with the line below."""
    if len(text) > SCRIPT_CHARS:
        return SyntaxTree((), (), 0, f"it has more than {SCRIPT_CHARS} characters")
    tree = _Parser(text).script()
    if tree.unread is None or _PLACEHOLDER.search(text) is None:
        return tree
    # a template: `<your name>` is a word that the user will replace, as open as a variable
    filled = _Parser(_PLACEHOLDER.sub(_as_variable, text)).script()
    return filled._replace(unread=tree.unread, fault=tree.fault)


def _as_variable(found: re.Match[str]) -> str:
    """A variable of the same length as a placeholder, so that no place moves."""
    return f"${_NO_NAME.sub('_', found.group(1))}_"


class _Parser:
    def __init__(self, text: str) -> None:
        self._read = WordReader(text, lambda: self._block(frozenset({")"})))
        self._commands = CommandReader(self._read)

    def script(self) -> SyntaxTree:
        statements: list[Statement] = []
        faults: list[Unreadable] = []
        while len(faults) < _MOST_FAULTS:
            try:
                self._block_into(statements, frozenset())
                break
            except Unreadable as error:
                faults.append(error)
            # bash stops here; the lines below may still show what the script is for
            self._read.restart(max(faults[-1].offset, self._read.at))
            self._commands.pending.clear()
            statements.append(_compound("unread", [], faults[-1].offset, self._read.at))
        unread, fault = (faults[0].offset, faults[0].what) if faults else (None, "")
        return SyntaxTree(tuple(statements), tuple(self._commands.heredocs), unread, fault)

    def _block(self, stops: frozenset[str]) -> Block:
        """Statements up to a word or sign of `stops`, which is not stepped over."""
        statements: list[Statement] = []
        self._read.enter()
        self._block_into(statements, stops)
        self._read.leave()
        return tuple(statements)

    def _block_into(self, statements: list[Statement], stops: frozenset[str]) -> None:
        read = self._read
        while True:
            self._commands.skip_lines()
            if read.at >= read.end and stops:
                raise Unreadable("a block is not closed", read.at)
            if read.at >= read.end or self._is_stop(stops):
                return
            start = read.at
            statement = self._and_or()
            read.skip_blanks()
            sign = read.peek()
            if sign == "&":
                read.at += 1
                statement = _compound("background", [(statement,)], start, read.at)
            elif sign == ";" and read.peek(2) not in (";;", ";&"):
                read.at += 1
            elif sign not in ("\n", "") and not self._is_stop(stops):
                raise Unreadable(f"{sign} is not expected here", read.at)
            statements.append(statement)

    def _is_stop(self, stops: frozenset[str]) -> bool:
        sign = ")" if self._read.peek() == ")" else ";;" if self._read.peek(2) in (";;", ";&") else self._reserved()
        if sign in stops:
            return True
        if sign in _CLOSERS or sign in (")", ";;"):
            raise Unreadable(f"{sign} is not expected here", self._read.at)
        return False

    def _reserved(self) -> str:
        found = _RESERVED.match(self._read.text, self._read.at, self._read.end)
        return found.group(1) if found else ""

    def _and_or(self) -> Statement:
        read, start, blocks = self._read, self._read.at, [(self._pipeline(),)]
        while True:
            read.skip_blanks()
            if read.peek(2) not in ("&&", "||"):
                return blocks[0][0] if len(blocks) == 1 else _compound("and_or", blocks, start, read.at)
            read.at += 2
            self._commands.skip_lines()
            blocks.append((self._pipeline(),))

    def _pipeline(self) -> Statement:
        read, start = self._read, self._read.at
        while (word := self._reserved()) in ("!", "time"):
            read.at += len(word)
            read.skip_blanks()
            if word == "time" and read.peek(3).rstrip() == "-p":
                read.at += 2
                read.skip_blanks()
        blocks = [(self._command(),)]
        while True:
            read.skip_blanks()
            if read.peek() != "|" or read.peek(2) == "||":
                return blocks[0][0] if len(blocks) == 1 else _compound("pipeline", blocks, start, read.at)
            read.at += 2 if read.peek(2) == "|&" else 1
            self._commands.skip_lines()
            blocks.append((self._command(),))

    def _command(self) -> Statement:
        self._read.enter()
        statement = self._compound_command() or self._function() or self._commands.simple()
        self._read.leave()
        return statement

    def _compound_command(self) -> Compound | None:
        read, start, word = self._read, self._read.at, self._reserved()
        if read.peek() == "(":
            statement = self._arithmetic() or self._bracketed("subshell", "(", ")")
        elif word == "{":
            statement = self._bracketed("group", "{", "}")
        elif word == "[[":
            statement = self._test()
        elif word == "if":
            statement = self._if()
        elif word in ("while", "until"):
            read.at += len(word)
            statement = self._loop([self._block(frozenset({"do"}))], (), "", start)
        elif word in ("for", "select"):
            statement = self._for(word)
        elif word == "case":
            statement = self._case()
        elif word == "coproc":
            raise Unreadable("coproc is not read", read.at)
        else:
            return None
        redirects = []
        read.skip_blanks()
        while (redirect := self._commands.redirect()) is not None:
            redirects.append(redirect)
            read.skip_blanks()
        return statement._replace(redirects=tuple(redirects), end=read.at)

    def _bracketed(self, kind: str, opening: str, closing: str) -> Compound:
        start = self._read.at
        self._read.step_over(opening)
        block = self._block(frozenset({closing}))
        self._read.step_over(closing)
        return _compound(kind, [block], start, self._read.at)

    def _arithmetic(self) -> Compound | None:
        read, start = self._read, self._read.at
        close = read.arithmetic_end(start)
        if close < 0:
            return None
        read.at = close + 2
        return _compound("arithmetic", [], start, read.at, name=read.text[start + 2 : close])

    def _test(self) -> Compound:
        start = self._read.at
        self._read.step_over("[[")
        words = self._commands.test_words()
        return _compound("test", [], start, self._read.at, words)

    def _if(self) -> Compound:
        read, start, blocks = self._read, self._read.at, list[Block]()
        read.step_over("if")
        while True:
            blocks.append(self._block(frozenset({"then"})))
            read.step_over("then")
            blocks.append(self._block(frozenset({"elif", "else", "fi"})))
            word = self._reserved()
            read.at += len(word)
            if word == "else":
                blocks.append(self._block(frozenset({"fi"})))
                read.step_over("fi")
            if word != "elif":
                return _compound("if", blocks, start, read.at)

    def _for(self, word: str) -> Compound:
        read, start, words = self._read, self._read.at, list[RawWord]()
        read.step_over(word)
        read.skip_blanks()
        close = read.arithmetic_end(read.at)
        if close >= 0:
            name, read.at = read.text[read.at : close], close + 2
        else:
            found = _NAME.match(read.text, read.at, read.end)
            if found is None:
                raise Unreadable("the variable of a loop is missing", read.at)
            name, read.at = found.group(), found.end()
            self._commands.skip_lines()
            if _IN.match(read.text, read.at, read.end):
                read.at += len("in")
                read.skip_blanks()
                while read.peek() not in ("\n", ";", ""):
                    words.append(read.word())
                    read.skip_blanks()
        if read.peek() == ";":
            read.at += 1
        self._commands.skip_lines()
        return self._loop([], tuple(words), name, start)

    def _loop(self, before: Sequence[Block], words: tuple[RawWord, ...], name: str, start: int) -> Compound:
        self._read.skip_blanks()
        if self._reserved() == "{":
            body = self._bracketed("group", "{", "}").blocks[0]
        else:
            self._read.step_over("do")
            body = self._block(frozenset({"done"}))
            self._read.step_over("done")
        return _compound("loop", [*before, body], start, self._read.at, words, name)

    def _case(self) -> Compound:
        read, start, blocks = self._read, self._read.at, list[Block]()
        read.step_over("case")
        read.skip_blanks()
        words = (read.word(),)
        self._commands.skip_lines()
        read.step_over("in")
        while True:
            self._commands.skip_lines()
            if self._reserved() == "esac":
                read.at += len("esac")
                return _compound("case", blocks, start, read.at, words)
            self._commands.skip_patterns()
            blocks.append(self._block(frozenset({";;", "esac"})))
            while read.peek() in (";", "&") and read.peek():
                read.at += 1

    def _function(self) -> Function | None:
        read, start = self._read, self._read.at
        found = _FUNCTION.match(read.text, read.at, read.end)
        if found is None:
            return None
        read.at = found.end()
        self._commands.skip_lines()
        body = self._compound_command()
        if body is None:
            raise Unreadable("the body of a function is missing", read.at)
        return Function(found.group(1) or found.group(2), body, start, read.at)


def _compound(
    kind: str, blocks: Sequence[Block], offset: int, end: int, words: tuple[RawWord, ...] = (), name: str = ""
) -> Compound:
    return Compound(kind, tuple(blocks), words, (), name, offset, end)
