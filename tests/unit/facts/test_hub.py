"""The Hugging Face hub, asked through a server of ours that answers as it does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from prime_train.facts.accounts import check_repositories
from prime_train.facts.facts import HubAnswer, HubRepository, NotKnown


class Hub(BaseHTTPRequestHandler):
    """Knows one repository for each answer; `asked` are the paths that were asked for."""

    asked: ClassVar[list[str]] = []
    silent: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Says nothing: the test reads `asked`."""

    def _answer(self) -> None:
        Hub.asked.append(self.path)
        name = self.path.removeprefix("/api/models/").removeprefix("/api/datasets/").removeprefix("/datasets/")
        match name.partition("/resolve/")[0].strip("/"):
            case "lab/open" | "lab/data":
                self._send(200, {"siblings": [{"rfilename": "config.json"}, {"rfilename": "tokenizer.json"}]})
            case "lab/bare":
                self._send(200, {"siblings": [{"rfilename": "config.json"}]})
            case "lab/gated" if "/resolve/" in self.path:
                self._send(403, {}, code="GatedRepo", message="Access to model lab/gated is restricted")
            case "lab/gated":
                self._send(200, {"gated": "manual", "siblings": [{"rfilename": "config.json"}]})
            case "lab/accepted":
                self._send(200, {"gated": "auto", "siblings": [{"rfilename": "config.json"}]})
            case "lab/private":
                self._send(401, {}, code="RepoNotFound", message="Repository not found")
            case "lab/expired":
                self._send(401, {}, message="Invalid credentials in Authorization header")
            case "lab/forbidden":
                self._send(403, {}, message="token lacks the right")
            case "lab/broken":
                self._send(500, {})
            case "lab/portal":
                self._send_text("<html>please log in</html>")
            case "lab/silent":
                Hub.silent.wait(30.0)
            case _:
                self._send(404, {}, code="RepoNotFound", message="Repository not found")

    def _send(self, status: int, about: dict[str, Any], *, code: str = "", message: str = "") -> None:
        self.send_response(status)
        for header, value in (("X-Error-Code", code), ("X-Error-Message", message)):
            if value:
                self.send_header(header, value)
        self._end(json.dumps({"id": "lab/x", **about}).encode())

    def _send_text(self, text: str) -> None:
        self.send_response(200)
        self._end(text.encode())

    def _end(self, body: bytes) -> None:
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", '"0"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    Hub.asked.clear()
    Hub.silent.clear()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    yield
    Hub.silent.set()
    server.shutdown()
    thread.join()
    server.server_close()


def one(kind: str, name: str, *, offline: bool = False) -> HubRepository:
    answer = check_repositories([(kind, name)], offline=offline)
    assert isinstance(answer, tuple), answer
    (repository,) = answer
    assert (repository.kind, repository.name) == (kind, name)
    return repository


@pytest.mark.parametrize(
    ("name", "answer", "has_tokenizer"),
    [
        ("lab/open", HubAnswer.OPEN, True),
        ("lab/bare", HubAnswer.OPEN, False),
        ("lab/accepted", HubAnswer.OPEN, False),
        ("lab/gated", HubAnswer.GATED, None),
        ("lab/private", HubAnswer.LOGIN, None),
        ("lab/expired", HubAnswer.BAD_TOKEN, None),
        ("lab/forbidden", HubAnswer.FORBIDDEN, None),
        ("lab/gone", HubAnswer.MISSING, None),
        ("no such name", HubAnswer.MISSING, None),
    ],
)
def test_what_the_hub_states_of_a_model(name: str, answer: HubAnswer, has_tokenizer: bool | None) -> None:
    repository = one("model", name)
    assert (repository.answer, repository.has_tokenizer) == (answer, has_tokenizer)


def test_a_data_set_is_asked_for_as_one() -> None:
    assert one("dataset", "lab/data").answer is HubAnswer.OPEN
    assert Hub.asked == ["/api/datasets/lab/data"]


@pytest.mark.parametrize(("name", "why"), [("lab/broken", "HTTP 500"), ("lab/portal", "not the hub")])
def test_a_server_that_is_not_well_is_no_answer(name: str, why: str) -> None:
    answer = check_repositories([("model", name)], offline=False)
    assert isinstance(answer, NotKnown)
    assert why in answer.reason


def test_a_server_that_is_silent_is_given_up() -> None:
    answer = check_repositories([("model", "lab/silent"), ("model", "lab/zzz")], offline=False, timeout_s=0.3)
    assert isinstance(answer, NotKnown)
    assert Hub.asked == ["/api/models/lab/silent"]  # the next would be as silent


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    answer = check_repositories([("model", "lab/open")], offline=False)
    assert isinstance(answer, NotKnown)
    assert "out of reach" in answer.reason


def test_nothing_is_asked_where_nothing_is_named() -> None:
    assert check_repositories([], offline=False) == ()
    assert Hub.asked == []


# --- the cache -----------------------------------------------------------------------------------


def cached(tmp_path: Path, folder: str) -> None:
    revision = "1" * 40
    root = tmp_path / "cache" / folder
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(revision)
    (root / "snapshots" / revision).mkdir(parents=True)
    (root / "snapshots" / revision / "config.json").write_text("{}")


def test_offline_the_cache_is_asked_alone(tmp_path: Path) -> None:
    cached(tmp_path, "models--lab--open")
    cached(tmp_path, "datasets--lab--data")
    assert one("model", "lab/open", offline=True).answer is HubAnswer.CACHED
    assert one("dataset", "lab/data", offline=True).answer is HubAnswer.CACHED
    answer = check_repositories([("model", "lab/bare")], offline=True)
    assert isinstance(answer, NotKnown)
    assert "lab/bare" in answer.reason
    assert Hub.asked == []


def test_a_run_that_is_kept_offline_cannot_have_what_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert one("model", "lab/open").answer is HubAnswer.NOT_CACHED
    assert one("dataset", "lab/data").answer is HubAnswer.NOT_CACHED
    assert Hub.asked == []


def test_what_is_cached_will_do_where_the_hub_is_out_of_reach(tmp_path: Path) -> None:
    cached(tmp_path, "models--lab--broken")
    assert one("model", "lab/broken").answer is HubAnswer.CACHED
