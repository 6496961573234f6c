"""Opens the files that come from outside: configs, manifests, markers, model folders, logs. Runs nothing in them.

People copy, edit, download and share such files, so nothing in them is believed. Only regular files are opened, because
a pipe or a device may never end. No part of a path below a root may be a link. Content has limits.
`/dev/stdin` and the pipes of a shell's `<(...)` are not regular files either: commands that read a stream have "-".
JSON from outside is no deeper or larger than later code can be expected to survive.
"""

# ruff: noqa: PTH116 - os.stat takes a text, too

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from io import BufferedReader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from json import JSONDecoder

    from prime_train.core.errors import ExitCode, UserError

Path = str | os.PathLike[str]

CONFIG_BYTES = 64 * 2**20  # a config has kilobytes; a larger file is probably a data file
RECORD_BYTES = 64 * 2**20  # a manifest of 100,000 files has 15 MB; other records have kilobytes
MARK_BYTES = 64 * 2**10  # one line: the text of a lock, a mark, a request
LINE_BYTES = 2**20  # a line of metrics has a few hundred bytes
MODEL_BYTES = 256 * 2**20  # the largest tokenizer.json has 33 MB, a config.json kilobytes
LOG_BYTES = 2**32  # of metrics: 10 million steps
_UNPACKED_TIMES = 100  # the most that a gzip file may unpack to, if that is more than _UNPACKED_BYTES
_UNPACKED_BYTES = 64 * 2**20
_PIECE_BYTES = 2**20
_COUNT_DIGITS = 18  # all of them fit into 64 bits

# Put together once, because thousands of files are opened.
_SAFE_FLAGS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe or a terminal that took the name changes nothing
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTED_FLAGS = os.O_RDONLY | os.O_NOFOLLOW

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISLNK, "a symbolic link"),
)
_PLAIN_NAME = re.compile(r"\.?[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}")  # most names; the others are looked at more closely
_DEPTH = 64  # the deepest record of ours nests 8 levels, the deepest config.json of a model 6


class OutsideError(OSError):
    """A file that is there but is not read. `what` describes it, `why` gives the reason."""

    def __init__(self, number: int, what: str, path: Path, why: str) -> None:
        super().__init__(number, what, os.fspath(path))
        self.what = what
        self.why = why

    def __str__(self) -> str:
        return self.what


def open_regular(path: Path, within: Path | None = None) -> BufferedReader:
    """A regular file, open for reading.

    Below `within`, no part of the path may be a symbolic link. Raises OutsideError for a link, a pipe, a device or a
    path that leads out of `within`, and OSError as open() does.
    """
    return open(open_descriptor(path, within), "rb")


def open_descriptor(path: Path, within: Path | None = None, flags: int = os.O_RDONLY) -> int:
    """The descriptor of a regular file that exists, with `flags` of os.open. Raises as `open_regular` does.

    The file is judged before it is opened, because opening a device can have an effect, and again after it, because
    another file may have taken its name.
    """
    return _open_judged(path, within, flags)[0]


def _open_judged(path: Path, within: Path | None, flags: int) -> tuple[int, os.stat_result]:
    if within is None:
        _judge(os.stat(path), path)
        return _open(path, flags, path)
    folder, name = _reach(path, within)
    try:
        _judge(os.stat(name, dir_fd=folder, follow_symlinks=False), path)
        return _open(name, flags | os.O_NOFOLLOW, path, folder)
    finally:
        os.close(folder)


def stat_regular(path: Path, within: Path) -> os.stat_result:
    """The status of a regular file below `within`. Raises as `open_regular` does; opens nothing."""
    folder, name = _reach(path, within)
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    finally:
        os.close(folder)
    _judge(status, path)
    return status


def read_bytes(path: Path, limit_bytes: int, within: Path | None = None) -> bytes:
    """The content of a regular file. Raises OutsideError as `open_regular` does, and for more than `limit_bytes`."""
    descriptor, status = _open_judged(path, within, os.O_RDONLY)
    return _read_whole(descriptor, path, limit_bytes, status.st_size)


def open_folder(path: Path) -> int:
    """The descriptor of a folder, for what is listed in it. Raises OSError, also for a link."""
    return os.open(path, FOLDER_FLAGS)


def read_listed(entry: os.DirEntry[str], folder: int, limit_bytes: int) -> tuple[bytes, os.stat_result]:
    """Content and status of a regular file that was listed in the folder of this descriptor. Raises as `read_bytes`."""
    # The listing has the kind, so the usual file needs no status before it is opened.
    if not entry.is_file(follow_symlinks=False):
        _judge(entry.stat(follow_symlinks=False), entry.name)
    descriptor, status = _open(entry.name, _LISTED_FLAGS, entry.name, folder)
    return _read_whole(descriptor, entry.name, limit_bytes, status.st_size), status


def _read_whole(descriptor: int, path: Path, limit_bytes: int, size: int) -> bytes:
    """The content of a file that had `size` bytes when it was opened. Close the descriptor."""
    try:
        # A read of `limit_bytes` would reserve so much memory for each file.
        content = os.read(descriptor, min(size, limit_bytes) + 1)
        if len(content) != size:  # it grew, is a file of /proc, which has no size, or the read was cut short
            while len(content) <= limit_bytes and (piece := os.read(descriptor, _PIECE_BYTES)):
                content += piece
    finally:
        os.close(descriptor)
    if len(content) > limit_bytes:
        from prime_train.core.units import format_bytes

        why = "a file of this kind is smaller, and reading it could use all memory"
        raise OutsideError(errno.EFBIG, f"it has more than {format_bytes(limit_bytes)}", path, why)
    return content


def read_text(path: Path, limit_bytes: int, within: Path | None = None, errors: str = "strict") -> str:
    """The UTF-8 text of a regular file, with \n as line ends. Raises ValueError too, for other bytes."""
    text = read_bytes(path, limit_bytes, within).decode("utf-8", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def read_json(path: Path, limit_bytes: int, within: Path | None = None) -> Any:
    """The value in a JSON file. Raises as `read_bytes` does, and ValueError for anything `parse_json` refuses."""
    return parse_json(read_bytes(path, limit_bytes, within))


def unpack(file: BufferedReader, path: Path) -> Iterator[bytes]:
    """The pieces of a gzip file that is open. Raises EOFError, OSError or zlib.error for a damaged one.

    Raises OutsideError once it has unpacked to more than any log does: text packs to a tenth or a fiftieth of its
    size, and a thousandth, the most that gzip can do, is a file that is meant to fill memory or time.
    """
    import gzip

    limit_bytes = max(_UNPACKED_BYTES, _UNPACKED_TIMES * os.fstat(file.fileno()).st_size)
    with gzip.GzipFile(fileobj=file) as stream:
        while piece := stream.read1(_PIECE_BYTES):
            limit_bytes -= len(piece)
            if limit_bytes < 0:
                what = f"it unpacks to more than {_UNPACKED_TIMES} times its size"
                raise OutsideError(errno.EFBIG, what, path, "a log that packs so well is a fault, or is meant to harm")
            yield piece


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a regular file without their ends; too long ones are skipped. Raises as `open_regular` does."""
    with open_regular(path) as file:
        while line := file.readline(LINE_BYTES):
            if line.endswith(b"\n") or len(line) < LINE_BYTES:
                yield line.removesuffix(b"\n")
                continue
            while (rest := file.readline(LINE_BYTES)) and not rest.endswith(b"\n"):
                pass


def name_fault(name: object) -> str:
    """Why a name in a manifest is not a plain name of a file below its folder; "" if it is one."""
    if isinstance(name, str) and _PLAIN_NAME.fullmatch(name):
        return ""
    if not isinstance(name, str) or not name:
        return "it is no text" if not isinstance(name, str) else "it is empty"
    if "\0" in name:
        return "it has a null byte"
    if name.startswith("/"):
        return "it is an absolute path"
    parts = name.split("/")
    if ".." in parts:
        return "it leads out of the folder"
    if "" in parts or "." in parts:
        return "it is not written plainly"
    if len(name.encode("utf-8", "surrogatepass")) > 4095 or max(map(len, parts)) > 255:
        return "it is too long"
    return ""


def to_count(value: object) -> int | None:
    """The count that a number or a text from outside means; None for anything else, and above 64 bits.

    Digits are those of ASCII, because `int` refuses some that str.isdigit accepts, as a raised 2.
    """
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _COUNT_DIGITS:
        return int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**_COUNT_DIGITS
    return value if is_count and isinstance(value, int) else None


def as_user_error(error: OSError | ValueError, where: str, fix: str, exit_code: ExitCode | None = None) -> UserError:
    """The message for a file that was not read or makes no sense."""
    from prime_train.core.errors import ExitCode, UserError

    code = ExitCode.USAGE if exit_code is None else exit_code
    if isinstance(error, OutsideError):
        return UserError(what=str(error), where=where, why=error.why, fix=fix, exit_code=code)
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return UserError(what="it cannot be read", where=where, why=reason, fix=fix, exit_code=code)


def _reach(path: Path, within: Path) -> tuple[int, str]:
    """A descriptor of the folder of `path`, reached from `within` without a link, and the name in it.

    The caller closes it.
    """
    *folders, name = _parts(os.fspath(path), os.fspath(within))
    folder = os.open(within, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in folders:
            inner = _open_folder(part, folder, path)
            os.close(folder)
            folder = inner
    except BaseException:
        os.close(folder)
        raise
    return folder, name


def _parts(path: str, within: str) -> list[str]:
    """The names from `within` down to `path`. Raises OutsideError where these do not lead down."""
    below = path[len(within) + 1 :] if path.startswith(f"{within}/") else ""
    if name_fault(below):
        below = os.path.relpath(path, within)
    parts = below.split("/")
    if ".." in parts:
        raise OutsideError(errno.EXDEV, f"it is not below {within}", path, "the path leads out of its folder")
    return parts


def _open_folder(name: str, folder: int, path: Path) -> int:
    try:
        return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise link_error(path) from None
        raise


def _open(name: Path, flags: int, path: Path, folder: int | None = None) -> tuple[int, os.stat_result]:
    """A descriptor of a regular file, and its status."""
    try:
        descriptor = os.open(name, flags | _SAFE_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
            raise link_error(path) from None
        raise
    try:
        status = os.fstat(descriptor)
        _judge(status, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def _judge(status: os.stat_result, path: Path) -> None:
    """Raises OutsideError unless it is a regular file; IsADirectoryError for a folder, as open() does."""
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if stat.S_ISLNK(mode):
        raise link_error(path)
    why = "reading it could wait or go on for ever"
    raise OutsideError(errno.EINVAL, f"it is {kind_of(mode)}, not a regular file", path, why)


def kind_of(mode: int) -> str:
    """What a file is that is neither regular nor a folder: "a named pipe"."""
    return next((text for is_kind, text in _KINDS if is_kind(mode)), "an unknown kind of file")


def link_error(path: Path) -> OutsideError:
    return OutsideError(errno.ELOOP, "it is a symbolic link", path, "a link may lead to files of another folder")


def parse_json(content: str | bytes, *, not_finite: bool = False, large: bool = False) -> Any:
    """The value of a JSON text.

    Raises ValueError if it is no JSON, nests deeper than any record, or has a number or a character that no later code
    can be expected to survive: Infinity, NaN, 1e999, integers above 64 bits, half a surrogate pair. `not_finite`
    permits Infinity and NaN, which a config.json may have; `large` permits long integers, such as the 10**30 of a
    tokenizer_config.json.
    """
    text = content if isinstance(content, str) else content.decode("utf-8")
    try:
        value = _decoder(not_finite, large).decode(text)
    except RecursionError:
        raise ValueError(f"it nests more than {_DEPTH} levels") from None
    if text.count("{") + text.count("[") > _DEPTH:
        _check_depth(value)
    if "\\u" in text and ("\\ud" in text or "\\uD" in text):
        import json

        json.dumps(value, ensure_ascii=False).encode("utf-8")  # raises UnicodeEncodeError, which is a ValueError
    return value


@cache
def _decoder(not_finite: bool, large: bool) -> JSONDecoder:
    from json import JSONDecoder

    constant = float if not_finite else _refuse_constant
    return JSONDecoder(parse_constant=constant, parse_float=_finite, parse_int=int if large else _bounded)


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_DEPTH):
        if not level:
            return
        inner = (each for node in level for each in (node.values() if isinstance(node, dict) else node))
        level = [each for each in inner if isinstance(each, dict | list)]
    if level:
        raise ValueError(f"it nests more than {_DEPTH} levels")


def _refuse_constant(written: str) -> Any:
    raise ValueError(f"{written} is no number of JSON")


def _finite(written: str) -> float:
    value = float(written)
    if value - value != 0.0:
        raise ValueError(f"{written[:40]} is beyond the range of numbers")
    return value


def _bounded(written: str) -> int:
    if len(written) > 20 or not -(2**63) <= (value := int(written)) < 2**64:
        raise ValueError(f"{written[:40]} has more than 64 bits")
    return value
