"""Follows the statements of a bash script in order, with the values that are certain at each point. Runs nothing.

What a branch, a loop, `read`, `source` or the output of a command decides is open behind it. A function is followed
where it is called, and a quoted script, as in `bash -c "..."`, where it is started.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from prime_train.config.foreign.shell import builtins
from prime_train.config.foreign.shell.expand import Expander
from prime_train.config.foreign.shell.made_texts import quoted_script, reads_script, state_of_shell, text_of
from prime_train.config.foreign.shell.simple_commands import DECLARATIONS
from prime_train.config.foreign.shell.state import ShellState, names_set, text_of_function
from prime_train.config.foreign.shell.syntax import parse
from prime_train.config.foreign.shell.trace import ScriptText, ShellCommand, Trace, script_text
from prime_train.config.foreign.shell.tree import Block, Compound, Function, RawWord, Redirect, Simple, Statement
from prime_train.config.foreign.shell.values import Piece, Pieces, Value, Word
from prime_train.config.foreign.shell.variables import assign, declare, files_named, heredoc_text, read_heredoc

_MOST_CALLS = 8  # functions and quoted scripts inside each other
_RETURNS = re.compile(r"\breturn\b")


class Walk:
    """Follows the statements of a source in a state. Raises TooMuch and RecursionError for a script without end."""

    def __init__(
        self, trace: Trace, state: ShellState, source: ScriptText, outer: tuple[Word, ...] = (), calls: int = 0
    ) -> None:
        self.trace = trace
        self.state = state
        self._outer = outer
        self._calls = calls
        self._locals: list[dict[str, Value | None]] = []
        self._expander = Expander(state, source, self._apart, trace.spend)

    @property
    def source(self) -> ScriptText:
        return self._expander.source

    def whole(self, block: Block) -> None:
        """Follows a whole script, then its functions that nothing calls: a sourced file may call them."""
        self.block(block)
        for name, function in list(self.state.functions.items()):
            if function is not None and not function[1].path and name not in self.trace.called:
                self._use(ShellState())
                self.state.lost = True
                self.block((function[0].body,))

    def block(self, block: Block) -> bool:
        """Follows statements; returns whether the shell certainly ends in them."""
        return any(self._statement(statement) for statement in block)

    def _use(self, state: ShellState) -> None:
        self.state = self._expander.state = state

    def _copy(self) -> ShellState:
        self.trace.spend(self.state.size())
        return self.state.copy()

    def _apart(self, block: Block) -> None:
        """Follows a block in a shell of its own: what it sets is lost."""
        before = self.state
        self._use(self._copy())
        self.block(block)
        self._use(before)

    def _statement(self, statement: Statement) -> bool:
        self.trace.spend(1)
        match statement:
            case Simple():
                return self._simple(statement)
            case Function(name=name):
                self.state.functions[name] = (statement, self.source)
                return False
            case Compound():
                return self._compound(statement)

    def _compound(self, statement: Compound) -> bool:
        for word in (*(redirect.target for redirect in statement.redirects), *statement.words):
            self._expander.words(word)  # for the effects that this has
        match statement.kind:
            case "group":
                return self.block(statement.blocks[0])
            case "subshell" | "background":
                self._apart(statement.blocks[0])
            case "pipeline":
                for block in statement.blocks:
                    self._apart(block)
                if "lastpipe" in self.source.text or self.state.lost:
                    self._forget(statement)  # the last part may run in this shell
            case "and_or":
                if self.block(statement.blocks[0]):
                    return True
                for block in statement.blocks[1:]:
                    self._one_of((block,))
            case "if":
                return self._if(statement.blocks)
            case "case":
                self._one_of(statement.blocks)
            case "loop":
                self._forget(statement)
                self._apart(tuple(each for block in statement.blocks for each in block))
                self._forget(statement)
            case "unread":
                self.state.forget_all()
            case "arithmetic":
                self._expander.compute(statement.name)
        return False

    def _one_of(self, blocks: Sequence[Block]) -> None:
        """Follows blocks; one or none runs."""
        before, results = self.state, [self._copy()]
        for block in blocks:
            self._use(before)
            self._use(self._copy())
            if not self.block(block):
                results.append(self.state)
        self._merge(results)

    def _if(self, blocks: Sequence[Block]) -> bool:
        """Conditions and bodies take turns; an odd block at the end is the else."""
        results = []
        for condition, body in zip(blocks[0::2], blocks[1::2], strict=False):
            if self.block(condition):
                break
            otherwise = self._copy()
            if not self.block(body):
                results.append(self.state)
            self._use(otherwise)
        else:
            if len(blocks) % 2 == 0 or not self.block(blocks[-1]):
                results.append(self.state)
        self._merge(results)
        return not results

    def _merge(self, results: Sequence[ShellState]) -> None:
        if results:
            self._use(results[0])
        for other in results[1:]:
            self.trace.spend(other.size())
            self.state.merge(other)

    def _forget(self, statement: Compound) -> None:
        """Forgets every variable that a statement may set."""
        self.trace.spend(self.state.forget_set_in(self.source.text[statement.offset : statement.end]) // 64)

    def _simple(self, statement: Simple) -> bool:
        for redirect in statement.redirects:
            self._expander.words(redirect.target)
        if not statement.words:
            for assignment in statement.assignments:
                assign(self._expander, assignment)
            return False
        words: list[Word] = []
        for raw in statement.words:
            found = self._expander.words(raw) if isinstance(raw, RawWord) else []
            self.trace.spend(1 + sum(len(word.pieces) for word in found))
            words.extend(found)
        if not words:
            return False
        # assignments in front of a command hold for the command alone
        before = self._copy() if statement.assignments else self.state
        given = {assignment.name: assign(self._expander, assignment) for assignment in statement.assignments}
        self._use(before)
        self.trace.spend(len(self.state.exported) // 8)
        place = self.source.place(statement.offset)
        environment = self.state.environment(given)
        command = ShellCommand(tuple(words), environment, *place, outer=self._outer, path=self.source.path)
        return self._run(command, statement)

    def _run(self, command: ShellCommand, statement: Simple) -> bool:
        """Follows a command with its words; returns whether the shell ends with it."""
        name, words = command.name, command.words
        if name in ("command", "builtin", "exec") and len(words) > 1 and not words[1].text.startswith("-"):
            ended = self._run(command._replace(words=words[1:]), statement)
            return ended or (name == "exec" and not words[1].is_open)
        if name in DECLARATIONS:
            declare(self._expander, command, statement.words, self._locals[-1] if self._locals else None)
        elif name in self.state.functions:
            return self._call(command)
        elif name == "eval":
            return self._eval(words[1:])
        elif name in ("source", "."):
            self._source(words[1:])
        elif name in ("exit", "return"):
            return True
        elif name in builtins.EFFECTS:
            builtins.EFFECTS[name](self.state, words[1:])
            if name == "read":
                read_heredoc(self._expander, words[1:], statement.redirects)
        else:
            if words[0].is_open and self.state.functions:
                self.trace.spend(self.state.forget_set_by_functions() // 64)  # it may call any of them
            self.trace.commands.append(command)
            self._heredoc(command, statement.redirects)
            self._script(quoted_script(command), command)
        return False

    def _call(self, command: ShellCommand) -> bool:
        """Follows a function where it is called."""
        name, state = command.name, self.state
        self.trace.called.add(name)
        function = state.functions[name]
        if function is None or self._calls >= _MOST_CALLS:
            state.forget_all()
            return False
        arguments, state.arguments, source = state.arguments, command.words[1:], self.source
        self._expander.source = function[1]
        self._calls += 1
        self._locals.append({})
        ended = self.block((function[0].body,))
        self._calls -= 1
        self._expander.source = source
        if _RETURNS.search(function[1].text, function[0].offset, function[0].end):
            ended = False
            self.state.forget(names_set(text_of_function(function)))  # it may return before its end
        for variable, value in self._locals.pop().items():
            if value is None:
                self.state.values.pop(variable, None)
            else:
                self.state.values[variable] = value
        self.state.arguments = arguments
        return ended

    def _heredoc(self, command: ShellCommand, redirects: Sequence[Redirect]) -> None:
        """Keeps the text of a heredoc that becomes a file, and follows one that a shell reads."""
        text = heredoc_text(self._expander, redirects)
        if text is None:
            return
        if not self.source.path:
            named = files_named(self._expander, command, redirects)
            self.trace.files.update({word.text: Word(text) for word in named if word.literal})
        if reads_script(command):
            self._script(text, command)

    def _script(self, pieces: Pieces, command: ShellCommand) -> None:
        """Follows a text that a shell of its own runs."""
        self._text(pieces, state_of_shell(command), (*command.outer, *command.words))

    def _eval(self, words: Sequence[Word]) -> bool:
        pieces = tuple(piece for word in words for piece in (Piece(" ", word.line, word.column), *word.pieces))
        ended = self._text(pieces, self.state, self._outer)
        if any(word.is_open for word in words):
            self.state.forget_all()
        return ended

    def _source(self, words: Sequence[Word]) -> None:
        """Follows a file that is sourced, if it can be read; else any variable may be set."""
        if words and builtins.HARMLESS.fullmatch(words[0].text) is not None:
            return
        found = None
        if words and self._calls < _MOST_CALLS:
            found = self.trace.load(words[0], self.source.path, self.trace.commands)
        if found is None or found[0] in self.trace.sourcing:
            self.state.forget_all()
            return
        path, text = found
        self.trace.sourcing.add(path)
        arguments = self.state.arguments
        self.trace.spend(len(text) // 64)
        if len(words) > 1:
            self.state.arguments = tuple(word.elsewhere() for word in words[1:])
        self._inside(script_text(text, path), self.state, self._outer)
        self.trace.sourcing.discard(path)
        if _RETURNS.search(text):
            self.state.forget(names_set(text))  # it may return before its end
        if len(words) > 1:
            self.state.arguments = arguments

    def _text(self, pieces: Pieces, state: ShellState, outer: tuple[Word, ...]) -> bool:
        """Follows a text that is made at run time. Its open pieces stay open."""
        if self._calls >= _MOST_CALLS or not pieces:
            state.forget_all()
            return False
        script, opened = text_of(pieces)
        self.trace.spend(len(script.text) // 64)
        state.values.update((name, (piece,)) for name, piece in opened.items())
        return self._inside(script._replace(path=self.source.path), state, outer)

    def _inside(self, source: ScriptText, state: ShellState, outer: tuple[Word, ...]) -> bool:
        """Follows another text in a state; returns whether the shell ends in it."""
        tree = parse(source.text)
        walk = Walk(self.trace, state, source._replace(heredocs=tree.heredocs), outer, self._calls + 1)
        ended = walk.block(tree.block)
        if state is self.state:
            self._use(walk.state)
        if tree.fault:
            self.state.forget_all()
        return ended
