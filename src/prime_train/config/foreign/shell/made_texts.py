"""Texts and values that a script makes at run time, with the place of each of their pieces. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate

from prime_train.config.foreign.shell.state import OPEN_NAME, ShellState
from prime_train.config.foreign.shell.trace import ScriptText, ShellCommand
from prime_train.config.foreign.shell.values import Piece, Pieces

SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_PASS_ENVIRONMENT = frozenset({*SHELLS, "srun", "env", "nohup", "time", "nice", "timeout", "setsid"})


def text_of(pieces: Pieces) -> tuple[ScriptText, dict[str, Piece]]:
    """The script that a quoted text is, and the variables in it that stand for its open pieces."""
    texts = [f"${{{OPEN_NAME}{number}}}" if piece.is_open else piece.text for number, piece in enumerate(pieces)]
    starts = [0, *accumulate(len(text) for text in texts)]

    def place(offset: int) -> tuple[int, int]:
        number = min(bisect_right(starts, offset) - 1, len(pieces) - 1)
        behind = pieces[number].behind(0 if pieces[number].is_open else offset - starts[number])
        return behind.line, behind.column

    opened = {f"{OPEN_NAME}{number}": piece for number, piece in enumerate(pieces) if piece.is_open}
    return ScriptText("".join(texts), place), opened


def quoted_script(command: ShellCommand) -> Pieces:
    """The text behind `bash -c`, or the last word of `ssh`; empty for a command without such a text."""
    words, at = command.words, _quoted_at(command)
    if at:
        return words[at].pieces
    return words[-1].pieces if command.name == "ssh" and len(words) > 2 and " " in words[-1].text else ()


def _quoted_at(command: ShellCommand) -> int:
    """Which word is the text behind `bash -c`; 0 if none is."""
    for number, word in enumerate(command.words[:-2]):
        if word.base in SHELLS and re.fullmatch(r"-[a-z]*c", command.words[number + 1].literal or ""):
            return number + 2
    return 0


def reads_script(command: ShellCommand) -> bool:
    """Whether a command runs the script that it gets on its standard input."""
    plain = [word.base for word in command.words if not word.text.startswith("-")]
    return plain[-1:] == ["bash"] or plain in (["sh"], ["sbatch"])


def state_of_shell(command: ShellCommand) -> ShellState:
    """The state in which the shell begins that a command starts."""
    passed = command.environment if command.words[0].base in _PASS_ENVIRONMENT else {}
    state = ShellState.with_environment({name: word.pieces for name, word in passed.items()})
    at = _quoted_at(command)
    if at:
        state.arguments = command.words[at + 2 :]  # the first word behind the text is $0
    return state
