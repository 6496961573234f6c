"""Reads a file of a git revision. A repository may be hostile: nothing that it configures is run."""

from __future__ import annotations

import os
import shlex
import subprocess

from prime_train.core import git
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import CONFIG_BYTES

_DEADLINE_S = 20.0
_FAR = ExitCode.OUT_OF_REACH
# cat-file gives the bytes of a blob: no pager, no filter, no textconv and no external diff.
_COMMAND = ("git", "--no-pager", "--no-replace-objects", "--no-optional-locks", "cat-file")


def read_revision(word: str) -> str:
    """The text of REV:PATH. A path is from the top of the repository; ./PATH is from this folder. Raises UserError."""
    if word.startswith("-"):
        raise _refuse(
            word, "a revision does not begin with -", "git would read it as an option", "name a commit or a tag"
        )
    size = _ask(word, "-s")
    if not size.strip().isdigit() or int(size) > CONFIG_BYTES:
        raise _refuse(word, f"it has more than {CONFIG_BYTES} bytes", "a config is a small file", "name a config")
    content = _ask(word, "blob")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"byte 0x{content[error.start]:02x} is not UTF-8"
        raise _refuse(word, what, "a config is UTF-8 text", "name a config, or convert it: iconv -t utf-8") from None


def _ask(word: str, how: str) -> bytes:
    """The answer of `git cat-file`. Raises UserError."""
    try:
        done = subprocess.run(
            [*_COMMAND, how, word],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=os.environ | git.ENVIRONMENT,
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        what = f"no answer of git within {_DEADLINE_S:g} s"
        raise _refuse(word, what, "git reads a file at once", "run `git fsck`, or name a file", _FAR) from None
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = getattr(error, "strerror", None) or str(error)
        raise _refuse(word, "git does not start", reason, "install git, or name a file", _FAR) from None
    if done.returncode != 0:
        raise _explain(word, done.stderr.decode(errors="replace"))
    return done.stdout


def _explain(word: str, errors: str) -> UserError:
    """The message for what git refuses."""
    reason = next((line.removeprefix("fatal: ") for line in errors.splitlines() if line.strip()), "it gives no reason")
    revision, _, path = word.partition(":")
    if "not a git repository" in reason:
        why = f"there is no file of that name, and {revision}:{path} would be a file of a git revision"
        return _refuse(word, "this folder is not in a git repository", why, "cd to one, or name a file")
    if "dubious ownership" in errors:
        return _refuse(
            word, "the repository belongs to another user", reason, "see `git help config`, safe.directory", _FAR
        )
    fix = f"git log --oneline -- {shlex.quote(path.removeprefix('./'))} lists revisions; ./PATH is from this folder"
    return _refuse(word, f"git has no file {path} in {revision}", reason, fix)


def _refuse(word: str, what: str, why: str, fix: str, code: ExitCode = ExitCode.USAGE) -> UserError:
    return UserError(what, word[:200], why[:300], fix, code)
