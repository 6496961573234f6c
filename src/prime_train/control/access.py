"""Decides who may see the page and who may request something: tokens in files, and the origin of each request.

A token is a secret of this folder of runs. The first one lets its holder read everything and send requests; the second
one only read. A browser gets a token once, in the address that `control` prints, and keeps a session: a value that is
derived from the token and ends after a month, in a cookie that no script can read and no other site can send.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import is_loopback
from prime_train.core.outside import MARK_BYTES, OutsideError, read_text
from prime_train.core.rundir import make_own_folder

Role = Literal["owner", "viewer"]
_FILES: Mapping[Role, str] = {"owner": "token", "viewer": "viewer_token"}
_TOKEN_BYTES = 32
_FORM = re.compile(r"[A-Za-z0-9_-]{43}")
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
SESSION_S = 30 * 24 * 3600
_HTTPS_PORT = 443
_SESSION = re.compile(r"(owner|viewer)\.([0-9]{1,12})\.([0-9a-f]{64})")


class Tokens(NamedTuple):
    """The two secrets of a controller."""

    owner: str
    viewer: str

    def find_role(self, given: str) -> Role | None:
        """Whose token it is, in a time that does not depend on how much of it is right."""
        candidate = given.encode("utf-8", "replace")
        is_owner = hmac.compare_digest(candidate, self.owner.encode())
        is_viewer = hmac.compare_digest(candidate, self.viewer.encode())
        return "owner" if is_owner else "viewer" if is_viewer else None

    def create_session(self, role: Role, now_s: float) -> str:
        """What a browser keeps: one who learns it has neither the token nor, after SESSION_S, any access."""
        return self._sign(role, int(now_s) + SESSION_S)

    def find_session(self, given: str, now_s: float) -> Role | None:
        """The role of a session that was made with the present tokens and has not ended."""
        found = _SESSION.fullmatch(given)
        if found is None:
            return None
        role: Role = "owner" if found[1] == "owner" else "viewer"
        is_ours = hmac.compare_digest(given.encode(), self._sign(role, int(found[2])).encode())
        return role if is_ours and now_s < int(found[2]) else None

    def _sign(self, role: Role, end_s: int) -> str:
        key = self.owner if role == "owner" else self.viewer
        text = f"prime-train session {role} {end_s}"
        return f"{role}.{end_s}.{hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()}"


def load_tokens(folder: Path) -> Tokens:
    """The tokens in the files of a folder, which are made where they are missing. Raises UserError, OSError."""
    try:
        make_own_folder(folder)  # before the index in it is opened, too: a link would lead to another database
    except PermissionError as error:
        why = "another user could put tokens of their own there, or lead to files of yours"
        what = f"the folder of the tokens cannot be used: {error.strerror}"
        raise UserError(what, str(folder), why, f"rm -r {folder}, or chown it", ExitCode.OUT_OF_REACH) from error
    return Tokens(*(_load_token(folder / name) for name in _FILES.values()))


def _load_token(path: Path) -> str:
    # O_EXCL: of two controllers that start together one writes, and the other reads.
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
    fix = f"rm {path}; the next start makes another one"
    try:
        found = path.lstat()
        token = read_text(path, MARK_BYTES, path.parent).strip()
    except (OutsideError, ValueError) as error:
        raise UserError("the token cannot be read", str(path), str(error), fix, ExitCode.OUT_OF_REACH) from error
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        why = "other users may read it, and so control the runs"
        raise UserError("the token is no secret", str(path), why, fix, ExitCode.OUT_OF_REACH)
    if not _FORM.fullmatch(token):
        raise UserError("the token is damaged", str(path), "it is not 43 letters, digits, - and _", fix)
    return token


class Address(NamedTuple):
    """Where the controller listens: on this machine alone, or with TLS on one address of it."""

    port: int
    host: str = "127.0.0.1"
    is_encrypted: bool = False

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_encrypted else 'http'}://{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/"

    @property
    def cookie(self) -> str:
        """The name of the cookie. Cookies of one host are sent to all its ports, so each port has a name of its own."""
        return f"prime_train_{self.port}"

    def find_fault(self, headers: Mapping[str, str], *, needs_origin: bool) -> str:
        """Why a request is not from this page; "" if it may be.

        A page of another site could reach this port by a name that resolves to this machine, which the Host header
        shows, or by a form, which the Origin header shows.
        """
        scheme, _, own = self.origin.partition("://")
        hosts = {f"{name}:{self.port}" for name in _LOOPBACK} if is_loopback(self.host) else {own}
        if scheme == "https" and self.port == _HTTPS_PORT:  # which a browser leaves out
            hosts |= {own.rpartition(":")[0]}
        host, origin = headers.get("host", "").lower(), headers.get("origin", "")
        if host not in hosts:
            return "the Host header is not this controller"
        if origin and origin not in {f"{scheme}://{name}" for name in hosts}:
            return "the Origin header is another site"
        if needs_origin and not origin:
            return "a request that changes something has no Origin header"
        return ""
