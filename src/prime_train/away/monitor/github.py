"""Talks to GitHub's REST API about the issues of one repository. Decides nothing, and repeats only what is safe.

Source: docs.github.com/en/rest/issues, version 2022-11-28. `GITHUB_API_URL` is set by GitHub Actions, for
GitHub Enterprise Server too.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.http import HttpBounds, HttpReply, HttpRequest, NoReplyError, is_safe, send

DEFAULT_URL = "https://api.github.com"
_VERSION = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
_HEADERS = _VERSION | {"Content-Type": "application/json"}
_MOST_BYTES = 32 * 2**20
_ANSWER_S = 120.0
_BETWEEN_S = (1.0, 4.0)
_LONGEST_WAIT_S = 60.0
_NAME = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]+")  # of an owner or a repository, but no step in a path


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository and the token that may write its issues. `url` is https, or http on this machine."""

    url: str
    name: str
    token: str
    sleep: Callable[[float], None] = time.sleep
    timeout_s: float = 30.0

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The parsed answer: a list of objects with ids for a GET, an object for others.

        After a temporary failure a GET and a PATCH are repeated. A POST is not, because the first one may have arrived.
        Raises UserError with exit code 4.
        """
        waits_s = () if method == "POST" else _BETWEEN_S
        for wait_s in waits_s:
            try:
                return self._ask_once(method, path, body)
            except _TemporaryError as failure:
                self.sleep(min(_LONGEST_WAIT_S, max(wait_s, failure.after_s)))
        try:
            return self._ask_once(method, path, body)
        except _TemporaryError as failure:
            raise self._failed(method, path, failure.what) from None

    def _ask_once(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = _HEADERS | {"Authorization": f"Bearer {self.token}"}
        content = None if body is None else json.dumps(body).encode()
        request = HttpRequest(method, f"{self.url}/repos/{self.name}{path}", headers, content)
        try:
            reply = send(request, HttpBounds(self.timeout_s, _ANSWER_S, _MOST_BYTES))
        except NoReplyError as error:
            raise _TemporaryError(f"no answer: {error.detail}") from None
        if reply.status >= 300:
            raise self._classify(method, path, reply)
        return self._parse(method, path, reply.body)

    def _classify(self, method: str, path: str, reply: HttpReply) -> Exception:
        """A limit of requests is 403 or 429 with a header. Source: docs.github.com, rate limits for the REST API."""
        is_limited = "retry-after" in reply.headers or reply.headers.get("x-ratelimit-remaining") == "0"
        if reply.status >= 500 or reply.status == 429 or (reply.status == 403 and is_limited):
            return _TemporaryError(f"HTTP {reply.status}", reply.retry_after_s)
        return self._failed(method, path, f"HTTP {reply.status}")

    def _parse(self, method: str, path: str, content: bytes) -> Any:
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None
        rows = document if isinstance(document, list) else [document]
        if isinstance(document, list) is not (method == "GET") or not all(_has_id(row) for row in rows):
            raise self._failed(method, path, "an answer that is not what GitHub documents")
        return document

    def _failed(self, method: str, path: str, what: str) -> UserError:
        return UserError(
            what=f"{method} {path.partition('?')[0]}: {what}",
            where=f"{self.url}/repos/{self.name}",
            why="the monitor keeps what it knows in an issue, and decides nothing without it",
            fix="check that the token may write issues (permissions: issues: write) and that issues are enabled",
            exit_code=ExitCode.OUT_OF_REACH,
        )


@dataclass(eq=False)
class _TemporaryError(Exception):
    what: str
    after_s: float = 0.0


def _has_id(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("id"), int) and isinstance(row.get("number", 0), int)


def open_repository(environment: Mapping[str, str]) -> Repository:
    """The repository of a workflow, from its environment. Raises UserError if a variable is missing."""
    name = environment.get("GITHUB_REPOSITORY", "")
    token = environment.get("GITHUB_TOKEN") or environment.get("GH_TOKEN") or ""
    url = environment.get("GITHUB_API_URL", DEFAULT_URL).rstrip("/")
    owner, slash, repository = name.partition("/")
    if not slash or not _NAME.fullmatch(owner) or not _NAME.fullmatch(repository):
        raise _missing("GITHUB_REPOSITORY", "is not OWNER/NAME")
    if not token:
        raise _missing("GITHUB_TOKEN", "is not set")
    if not is_safe(url):
        raise _missing("GITHUB_API_URL", "is no https address")
    return Repository(url, name, token)


def _missing(variable: str, what: str) -> UserError:
    why = "the monitor keeps what it knows in an issue of a GitHub repository"
    fix = "run it in GitHub Actions (prime-train init --github-actions), or set GITHUB_REPOSITORY and GITHUB_TOKEN"
    return UserError(f"{variable} {what}", "the environment", why, fix, ExitCode.USAGE)
