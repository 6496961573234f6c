"""What the commands of the shell itself do to its state: `read`, `set`, `export` and the like. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from prime_train.config.foreign.shell.state import UNKNOWN_ARGUMENTS, ShellState
from prime_train.config.foreign.shell.values import Word

# Sourced files that set up an environment, and no variables of the script.
HARMLESS = re.compile(r"(?:.*/)?(?:activate|\.?bashrc|\.bash_profile|\.profile|conda\.sh|setvars\.sh|modules?\.sh)")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def forget_names(state: ShellState, words: Sequence[Word]) -> None:
    """`read`, `unset` and the like: the words are names of variables."""
    if any(word.is_open for word in words):
        state.forget_all()
    for word in words:
        state.forget(_NAME.findall(word.text))


def print_formatted(state: ShellState, words: Sequence[Word]) -> None:
    if words and words[0].text == "-v":
        forget_names(state, words[1:2])


def set_options(state: ShellState, words: Sequence[Word]) -> None:
    texts = [word.text for word in words]
    if "--" in texts:
        state.arguments = tuple(words[texts.index("--") + 1 :])
    elif any(word.is_open or not word.text.startswith(("-", "+")) for word in words):
        state.arguments = UNKNOWN_ARGUMENTS
    letters = "".join(text for text in texts if text.startswith("-") and not text.startswith("--"))
    state.exports_all |= "a" in letters or "allexport" in texts
    state.patterns_stay &= "f" not in letters


def shift(state: ShellState, words: Sequence[Word]) -> None:
    arguments, count = state.arguments, words[0].literal if words else "1"
    is_sure = count is not None and count.isdigit() and len(count) < 4
    if arguments is None or not is_sure or count is None or any(word.many for word in arguments):
        state.arguments = UNKNOWN_ARGUMENTS
    elif int(count) <= len(arguments):
        state.arguments = arguments[int(count) :]


def set_shell_options(state: ShellState, words: Sequence[Word]) -> None:
    state.patterns_stay &= not any(word.text in ("nullglob", "failglob") or word.is_open for word in words)


EFFECTS: Mapping[str, Callable[[ShellState, Sequence[Word]], None]] = {
    "read": forget_names,
    "mapfile": forget_names,
    "readarray": forget_names,
    "unset": forget_names,
    "getopts": forget_names,
    "let": forget_names,
    "printf": print_formatted,
    "set": set_options,
    "shift": shift,
    "shopt": set_shell_options,
}
