"""What the commands of the shell itself do to its state: `read`, `set`, `export` and the like. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from prime_train.config.foreign.shell.state import UNKNOWN_ARGUMENTS, ShellState
from prime_train.config.foreign.shell.values import Word

# Sourced files that set up an environment, and no variables of the script.
HARMLESS = re.compile(r"(?:.*/)?(?:activate|\.?bashrc|\.bash_profile|\.profile|conda\.sh|setvars\.sh|modules?\.sh)")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CHANGES_VALUES = frozenset("ilunt")  # flags of `declare` with which the value is not the one that is written


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


def declare(state: ShellState, words: Sequence[Word], assigned: Sequence[str]) -> list[str]:
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
