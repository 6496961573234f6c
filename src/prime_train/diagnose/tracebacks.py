"""Builds Python tracebacks from a stream of lines, and shortens them. Judges nothing."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Literal, NamedTuple

HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r'^[>\s]\s*File "([^"]{1,500})", line (\d+)(?:, in (.{1,200}))?')
_EXCEPTION = re.compile(r"^((?:(?:[A-Za-z_]\w*|<\w{1,40}>)\.){0,10}[A-Za-z_]\w*(?:\([\w.]{1,80}\))?)(?::(?: (.*))?)?$")
_NAMED_SO = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Group|NotFound|Iteration|Cancelled|Empty|Full)$"
)
_BY_CAUSE = "The above exception was the direct cause of the following exception"
_BY_CONTEXT = "During handling of the above exception, another exception occurred"
_KEY = re.compile(r"^[\w.\[\]-]{1,300}$")
_MOST_FRAMES, _MOST_FOREIGN, _MOST_MESSAGE = 400, 400, 40
_CAMEL = re.compile(r"[A-Z][a-z]+[A-Z]\w*|[A-Z][a-z]{4,}$")
_RULE = re.compile(
    r"^-- Process \d+ terminated with the following error|^For more information check: |^nccl\w+Error: |"
    r"^Last error:$|^Cuda failure |^\"{3}$"
)
_INDENTS = " \t\u2502\u256d\u2570\u2514>"  # rich and loguru draw a box around a traceback
_UNDERLINES = frozenset("^~ ")
Placement = Literal["own", "foreign", "over"]
# Frames of libraries; all others are the user's code.
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/python3|^<|\.pyx$|/runpy\.py$|/bin/[^/]+$")
# Exceptions that code expects when it tries something. One raised while they are handled is more specific.
# Exceptions that hold the traceback of another process in their message.
_WRAPPERS = re.compile(
    r"Group$|ProcessRaisedException$|RemoteTraceback$|RayTaskError(?:\(\w+\))?$|WrappedException$|RemoteError$|RemoteException$"
)
_HOLDS_ANOTHER = re.compile(
    r"^Caught \w+ in (?:DataLoader worker process|replica|pin memory thread)|"
    r"^Process \d+ terminated with the following error"
)
_LEVELS = frozenset({"DEBUG", "INFO", "NOTICE", "STATUS", "SUCCESS", "WARN", "WARNING", "TRACE"})  # of loggers
_PROBING = frozenset(
    {"StopIteration", "StopAsyncIteration", "KeyError", "AttributeError", "CancelledError", "Empty", "IndexError"}
)


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
    """One exception of a chain. `after` is its relation to the one before it."""

    name: str
    message: str
    at: int  # line number in the log
    frames: tuple[Frame, ...]
    after: Literal["", "cause", "context"] = ""

    @property
    def text(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name

    @property
    def holds_another(self) -> bool:
        """Whether it only carries the exception of another process, whose traceback follows."""
        return bool(_WRAPPERS.search(self.name) or _HOLDS_ANOTHER.match(self.message))

    @property
    def is_of_library(self) -> bool:
        """Whether the code of a library raised it. An expected exception of the user's own code is a fault of it."""
        return not self.frames or self.frames[-1].is_library

    @property
    def frame(self) -> Frame | None:
        """The last frame in the user's code, else the last frame."""
        own = (frame for frame in reversed(self.frames) if not frame.is_library)
        return next(own, self.frames[-1] if self.frames else None)


def root(chain: tuple[Raised, ...]) -> Raised:
    """The first exception of a chain, except groups and expected exceptions, for which the next one is returned."""
    for raised, following in pairwise(chain):
        is_expected = (
            following.after == "context" and raised.name.rpartition(".")[2] in _PROBING and raised.is_of_library
        )
        if not is_expected and not raised.holds_another:
            return raised
    return chain[-1]


def shorten(raised: Raised) -> tuple[str, ...]:
    """The exception, the last frame in the user's code, and the last frame."""
    frames = dict.fromkeys(frame for frame in (raised.frame, *raised.frames[-1:]) if frame is not None)
    return (raised.text, *map(str, frames))


class Builder:
    """Builds one traceback from the lines of one writer."""

    def __init__(
        self, incident: int, at: int, is_calm: bool = False, *, is_ignored: bool = False, is_logged: bool = False
    ) -> None:
        self.incident = incident
        self.last_at = at  # number of its writer's last line
        self.is_calm = is_calm  # logged at warning level or below: the exception was caught
        self.is_logged = is_logged  # at any level
        self.is_ignored = is_ignored  # Python wrote it at its exit and went on
        self.chain: tuple[Raised, ...] = ()
        self._frames: list[Frame] = []
        self._code = ""
        self._key = ""  # config key in a pydantic error
        self._state: Literal["frames", "message", "between"] = "frames"
        self._after: Literal["", "cause", "context"] = ""
        self._others = 0

    @property
    def in_frames(self) -> bool:
        """Whether the next lines are frames and source lines, not messages."""
        return self._state == "frames"

    @property
    def has_ended(self) -> bool:
        """Whether its exception was read; the rest of its message or a chained exception may follow."""
        return self._state == "message"

    def add(self, text: str, at: int) -> Placement:
        """Whether the traceback goes on with the line.

        "own": the line is part of it; "foreign": another process wrote it in between; "over": it ended before this
        line.
        """
        self.last_at = at
        if HEADER in text:
            return "own" if self._header() else "over"
        if self._state == "frames":
            return self._frame(text, at)
        if self._state == "message" and self.chain[-1].holds_another and is_frame(text):
            self._state, self._after = "frames", "cause"
            return self._frame(text, at)
        if text.startswith((_BY_CAUSE, _BY_CONTEXT)):
            self._state, self._after = "between", "cause" if text.startswith(_BY_CAUSE) else "context"
            return "own"
        self._others += 1
        if self._others > _MOST_MESSAGE:
            return "over"
        if self._state == "message" and _KEY.match(text) and "validation error" in self.chain[-1].message:
            self._key = text
            return "own"
        if not text or _RULE.match(text) or (self._state == "message" and text[0].isspace()):
            return "own"
        if self._state == "message" and self._others == 1 and self.chain[-1].message.endswith(":"):
            return "own"  # "backend='inductor' raised:": the reason is on the next line
        return "foreign" if self._state == "between" else "over"

    def text_to_match(self, text: str, is_exception: bool) -> str:
        """The text for the signatures.

        An exception without a message gets its line of code, and a config error the key that pydantic writes on the
        line before.
        """
        if is_exception:
            last = self.chain[-1]
            return f"{last.name}: {self._code}" if not last.message and self._code.startswith("assert") else last.text
        return f"{self._key}: {text.strip()}" if self._key else text

    def _header(self) -> bool:
        if self._state == "message":
            if not self.chain[-1].holds_another:
                return False
            self._after = "cause"
        self._state, self._others = "frames", 0
        return True

    def _frame(self, text: str, at: int) -> Placement:
        found = _FRAME.match(text)
        if found:
            if len(self._frames) < _MOST_FRAMES:
                self._frames.append(Frame(found[1], int(found[2]), (found[3] or "").strip()))
            return "own"
        if not text or text[0] in _INDENTS:
            code = text.strip(_INDENTS)
            self._code = self._code if not code or set(code) <= _UNDERLINES else code
            return "own"
        raised = _EXCEPTION.match(text)
        if raised is None or not self._is_name(raised[1], raised[2] is not None):
            self._others += 1
            return "foreign" if self._others <= _MOST_FOREIGN else "over"
        this = Raised(raised[1], (raised[2] or "").strip(), at, tuple(self._frames), self._after)
        self.chain = (*self.chain, this)
        self._frames, self._state, self._others, self._after = [], "message", 0, ""
        return "own"

    def _is_name(self, name: str, has_message: bool) -> bool:
        """Whether this can be the name of an exception; "wandb: Syncing run" comes from another writer."""
        if _NAMED_SO.search(name) or name.endswith(")"):
            return True
        if self._frames and "." in name:
            return True
        if name in _LEVELS or name.endswith("ing"):  # "Uploading: 100%" is the label of a progress bar
            return False
        return (has_message or bool(self._frames)) and name.rpartition(".")[2][:1].isupper()


def is_frame(text: str) -> bool:
    """Whether a line is a frame of a traceback; faulthandler's lines of the same form have no comma."""
    found = _FRAME.match(text)
    return found is not None and found[3] is not None


def exception_alone(text: str) -> bool:
    """Whether a single line is an exception without a traceback: "ValueError: too short", "zmq.error.Again: ..."."""
    found = _EXCEPTION.match(text)
    if found is None:
        return False
    name, has_message = found[1], found[2] is not None
    if name == "KeyboardInterrupt" or re.search(r"(?:Error|Exception)$", name):
        return has_message or name == "KeyboardInterrupt" or "." in name
    last = name.rpartition(".")[2]
    return "." in name and has_message and (bool(_CAMEL.match(last)) or last.lower().endswith("error"))
