"""A Hugging Face hub of our own on 127.0.0.1: serves models and datasets as huggingface_hub asks for them, with faults.

`python -m tests.fakes.hub_server FOLDER` serves the models in FOLDER/owner/name and the datasets in
FOLDER/datasets/owner/name until it is ended; tests start it in a thread. Parquet of a dataset lies in other storage,
to which the hub redirects, as it does for all large files.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_TRICKLE_S = 0.05
_STORAGE = "/storage/"
_STORED = (".parquet",)
_MOST_HASHED_BYTES = 2**26


@dataclass(slots=True)
class Fault:
    """What is wrong with a repository, or with one of its files where `file` names it.

    `status` answers with that code. `silent` never answers. `cut` sends so many bytes of what it announced and hangs
    up. `trickle` sends byte by byte. `portal` answers with a page of HTML.
    """

    status: int = 0
    code: str = ""
    message: str = ""
    file: str = ""
    silent: bool = False
    cut: int | None = None
    trickle: bool = False
    portal: bool = False
    ignores_ranges: bool = False


@dataclass(slots=True)
class Hub:
    """What is served. `asked` are (method, path, range) of every request, in order."""

    root: Path
    faults: dict[str, Fault] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    sent_bytes: int = 0
    closing: threading.Event = field(default_factory=threading.Event)
    endpoint: str = ""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Says nothing: a test reads `asked`."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, self.path, self.headers.get("Range", "")))
        if path.startswith("/api/models/"):
            self._about(path.removeprefix("/api/models/").partition("/revision/")[0])
        elif path.startswith("/api/datasets/"):
            name, _, revision = path.removeprefix("/api/").partition("/tree/")
            self._list(name) if revision else self._about(name.partition("/revision/")[0])
        elif path.startswith(_STORAGE):
            self._store(path.removeprefix(_STORAGE))
        else:
            name, _, file = path.lstrip("/").partition("/resolve/")
            self._file(name, file.partition("/")[2])

    def _about(self, name: str) -> None:
        fault = self.hub.faults.get(name, Fault())
        folder = self.hub.root / name
        if not fault.file and self._failed(fault):
            return
        if not folder.is_dir():
            self._refuse(404, "RepoNotFound", "Repository not found")
            return
        found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        siblings = [{"rfilename": str(path.relative_to(folder)), "size": path.stat().st_size} for path in found]
        about = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "private": False}
        about["gated"] = "manual" if name in self.hub.gated or fault.code == "GatedRepo" else False
        self._send(json.dumps(about).encode(), Fault() if fault.file else fault)

    def _list(self, name: str) -> None:
        """The files of a dataset, with the hash of the content where it lies in other storage."""
        if self._failed(self.hub.faults.get(name, Fault())):
            return
        folder = self.hub.root / name
        if not folder.is_dir():
            self._refuse(404, "RepoNotFound", "Repository not found")
            return
        entries: list[dict[str, Any]] = []
        for path in sorted(folder.rglob("*")):
            entry: dict[str, Any] = {
                "type": "directory",
                "path": str(path.relative_to(folder)),
                "oid": _hash(path),
                "size": 0,
            }
            if path.is_file():
                entry |= {"type": "file", "size": path.stat().st_size}
            if path.suffix in _STORED:
                entry["lfs"] = {"oid": _hash(path), "size": path.stat().st_size, "pointerSize": 134}
            entries.append(entry)
        self._send(json.dumps(entries).encode(), Fault())

    def _store(self, file: str) -> None:
        """A file in the other storage, which knows no repository."""
        path = self.hub.root / file
        with open(path, "rb") as opened:
            start, end = self._span(path.stat().st_size, Fault())
            opened.seek(start)
            self._send(opened.read(end - start), Fault(), partial=(start, end, path.stat().st_size))

    def _redirect(self, path: Path) -> None:
        self.send_response(302)
        storage = self.hub.endpoint.replace("127.0.0.1", "localhost")  # another host, as the storage of the hub is
        self.send_header("Location", f"{storage}{_STORAGE}{path.relative_to(self.hub.root)}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Etag", f'"{_hash(path)}"')
        self.send_header("X-Linked-Size", str(path.stat().st_size))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self, name: str, file: str) -> None:
        fault = self.hub.faults.get(name, Fault())
        if fault.file and fault.file != file:
            fault = Fault()
        path = self.hub.root / name / file
        if self._failed(fault):
            return
        if not path.is_file():
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        if name.startswith("datasets/") and path.suffix in _STORED:
            self._redirect(path)
            return
        with open(path, "rb") as opened:
            start, end = self._span(path.stat().st_size, fault)
            opened.seek(start)
            self._send(opened.read(end - start), fault, partial=(start, end, path.stat().st_size), etag=_hash(path))

    def _span(self, size: int, fault: Fault) -> tuple[int, int]:
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        if not wanted or fault.ignores_ranges:
            return 0, size
        start, _, last = wanted.partition("-")
        return int(start), min(size, int(last) + 1)

    def _failed(self, fault: Fault) -> bool:
        """Whether the fault was the answer."""
        if fault.silent:
            self.hub.closing.wait(60)
            self.close_connection = True
        elif fault.portal:
            self._send(b"<html>please log in</html>", Fault(), kind="text/html")
        elif fault.status:
            self._refuse(fault.status, fault.code, fault.message)
        return fault.silent or fault.portal or bool(fault.status)

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        self.send_response(status)
        for header, value in (("X-Error-Code", code), ("X-Error-Message", message)):
            if value:
                self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send(
        self,
        body: bytes,
        fault: Fault,
        *,
        kind: str = "application/json",
        partial: tuple[int, int, int] | None = None,
        etag: str = "0",
    ) -> None:
        whole = partial is None or (partial[0] == 0 and partial[1] == partial[2])
        self.send_response(200 if whole else 206)
        self.send_header("Content-Type", kind)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Content-Length", str(len(body)))
        if partial is not None and not whole:
            self.send_header("Content-Range", f"bytes {partial[0]}-{partial[1] - 1}/{partial[2]}")
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            self._write(body, fault)
        except (BrokenPipeError, ConnectionResetError):  # who asked has heard enough
            self.close_connection = True

    def _write(self, body: bytes, fault: Fault) -> None:
        if fault.trickle:
            for number in range(len(body)):
                self.wfile.write(body[number : number + 1])
                self.wfile.flush()
                if self.hub.closing.wait(_TRICKLE_S):
                    break
        else:
            self.wfile.write(body if fault.cut is None else body[: fault.cut])
        self.hub.sent_bytes += len(body)
        if fault.cut is not None:
            self.close_connection = True


def _hash(path: Path) -> str:
    """By the content, but of a large file by its size and time: some have gigabytes of zeros."""
    status = path.stat()
    is_read = path.is_file() and status.st_size <= _MOST_HASHED_BYTES
    content = path.read_bytes() if is_read else f"{path} {status.st_size} {status.st_mtime_ns}".encode()
    return hashlib.sha256(content).hexdigest()


@contextmanager
def serving(root: Path) -> Iterator[Hub]:
    """A hub that serves root/owner/name until the block ends. `endpoint` is what HF_ENDPOINT takes."""
    hub = Hub(root)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    with serving(Path(sys.argv[1])) as served:
        print(f"HF_ENDPOINT={served.endpoint}", flush=True)  # noqa: T201 - what a person needs
        threading.Event().wait()
