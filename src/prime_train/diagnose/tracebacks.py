"""Puts Python tracebacks together from a stream of lines, and makes them short. Judges nothing."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Literal, NamedTuple

HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r'^[>\s]\s*File "([^"]{1,500})", line (\d+)(?:, in (.{1,200}))?')
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.){0,10}[A-Za-z_]\w*)(?::(?: (.*))?)?$")
_NAMED_SO = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Group|NotFound|Iteration|Cancelled|Empty|Full)$"
)
_BY_CAUSE = "The above exception was the direct cause of the following exception"
_BY_CONTEXT = "During handling of the above exception, another exception occurred"
_KEY = re.compile(r"^[\w.\[\]-]{1,300}$")
_MOST_FRAMES, _MOST_STRANGERS, _MOST_MESSAGE = 400, 400, 40
_INDENTS = " \t\u2502\u256d\u2570\u2514>"  # rich and loguru draw a box around a traceback
_UNDERLINES = frozenset("^~ ")
Taken = Literal["mine", "stranger", "over"]
# A library's own frames; the rest is what the user wrote or chose.
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/python3|^<|\.pyx$|/runpy\.py$|/bin/[^/]+$")
# Exceptions by which code feels its way: where another came while one of these was handled, that other one tells more.
_FEELERS = frozenset({"StopIteration", "StopAsyncIteration", "KeyError", "AttributeError", "CancelledError", "Empty"})


class Frame(NamedTuple):
    """One place in a traceback."""

    file: str
    line: int
    function: str

    @property
    def is_library(self) -> bool:
        return bool(_LIBRARY.search(self.file))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


class Raised(NamedTuple):
    """One exception of a chain. `after` is why it follows the one before it."""

    name: str
    message: str
    at: int  # the line of the log
    frames: tuple[Frame, ...]
    after: Literal["", "cause", "context"] = ""

    @property
    def text(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name

    @property
    def frame(self) -> Frame | None:
        """The last frame of the user's own code, else the last one."""
        own = [frame for frame in self.frames if not frame.is_library]
        return own[-1] if own else (self.frames[-1] if self.frames else None)


def root(chain: tuple[Raised, ...]) -> Raised:
    """The exception that began a chain. One by which code only felt its way gives place to the one it led to."""
    for raised, following in pairwise(chain):
        if following.after == "context" and raised.name.rpartition(".")[2] in _FEELERS:
            continue
        if raised.name.endswith("Group"):
            continue
        return raised
    return chain[-1]


def shortened(raised: Raised) -> tuple[str, ...]:
    """The exception and where it was raised: the last frame, and before it the last one of the user's own code."""
    if not raised.frames:
        return (raised.text,)
    last, own = raised.frames[-1], raised.frame
    return (raised.text, *(str(frame) for frame in dict.fromkeys((own, last)) if frame is not None))


class Builder:
    """One traceback as it comes in, line by line, of one writer."""

    def __init__(self, incident: int, at: int, is_calm: bool = False) -> None:
        self.incident = incident
        self.last_at = at  # the line at which its writer was last heard
        self.is_calm = is_calm  # told at warning level or below: somebody caught it
        self.chain: tuple[Raised, ...] = ()
        self._frames: list[Frame] = []
        self._code = ""
        self._key = ""  # of a config, as pydantic tells it
        self._state: Literal["frames", "message", "between"] = "frames"
        self._after: Literal["", "cause", "context"] = ""
        self._others = 0

    @property
    def in_frames(self) -> bool:
        """Whether what comes is frames and source lines, which are no messages."""
        return self._state == "frames"

    @property
    def has_ended(self) -> bool:
        """Whether its exception has come; what follows is the rest of its message, or another one of its chain."""
        return self._state == "message"

    def takes(self, text: str, at: int) -> Taken:
        """ "mine": the line belongs to this traceback and is kept; "stranger": another process wrote in between;
        "over": the traceback ended before this line."""
        self.last_at = at
        if HEADER in text:
            return "mine" if self._header() else "over"
        if self._state == "frames":
            return self._frame(text, at)
        if text.startswith((_BY_CAUSE, _BY_CONTEXT)):
            self._state, self._after = "between", "cause" if text.startswith(_BY_CAUSE) else "context"
            return "mine"
        self._others += 1
        if self._others > _MOST_MESSAGE:
            return "over"
        if self._state == "message" and _KEY.match(text) and "validation error" in self.chain[-1].message:
            self._key = text
            return "mine"
        if not text or (self._state == "message" and text[0].isspace()):
            return "mine"
        return "stranger" if self._state == "between" else "over"

    def said(self, text: str, is_exception: bool) -> str:
        """What a signature is looked for in: an exception that says nothing itself has its line of code beside it,
        a fault of a config the key that pydantic writes on the line before."""
        if is_exception:
            last = self.chain[-1]
            return last.text if last.message else f"{last.name}: {self._code}"
        return f"{self._key}: {text.strip()}" if self._key else text

    def _header(self) -> bool:
        is_group = bool(self.chain) and self.chain[-1].name.endswith("Group")
        if self._state == "message" and not is_group:
            return False
        if self._state == "message":
            self._after = "cause"
        self._state, self._others = "frames", 0
        return True

    def _frame(self, text: str, at: int) -> Taken:
        found = _FRAME.match(text)
        if found:
            if len(self._frames) < _MOST_FRAMES:
                self._frames.append(Frame(found[1], int(found[2]), (found[3] or "").strip()))
            return "mine"
        if not text or text[0] in _INDENTS:
            code = text.strip(_INDENTS)
            self._code = self._code if not code or set(code) <= _UNDERLINES else code
            return "mine"
        raised = _EXCEPTION.match(text)
        if raised is None or not self._is_name(raised[1], raised[2] is not None):
            self._others += 1
            return "stranger" if self._others <= _MOST_STRANGERS else "over"
        this = Raised(raised[1], (raised[2] or "").strip(), at, tuple(self._frames), self._after)
        self.chain = (*self.chain, this)
        self._frames, self._state, self._others, self._after = [], "message", 0, ""
        return "mine"

    def _is_name(self, name: str, has_message: bool) -> bool:
        """Whether an exception may be called so; "wandb: Syncing run" is what another one wrote in between."""
        return bool(_NAMED_SO.search(name)) or (
            (has_message or bool(self._frames)) and name.rpartition(".")[2][:1].isupper()
        )


def exception_alone(text: str) -> bool:
    """Whether a line by itself is what an uncaught exception leaves: "ValueError: too short"."""
    found = _EXCEPTION.match(text)
    return found is not None and found[2] is not None and bool(re.search(r"(?:Error|Exception)$", found[1]))
