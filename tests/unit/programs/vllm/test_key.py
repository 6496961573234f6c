from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from prime_train import spec
from prime_train.core.http import API_KEY
from prime_train.programs.vllm.extension.prime_train_key import KeyGuard
from prime_train.programs.vllm.program import create_key
from prime_train.spec import Data, RunSpec
from prime_train.spec.rl import Rl
from prime_train.spec.server import Server

KEY = "0123456789abcdef"


async def _app(scope: Mapping[str, Any], _receive: object, send: Any) -> None:
    await send({"type": f"{scope['type']}.answered"})


def ask(path: str, *headers: tuple[bytes, bytes], kind: str = "http") -> list[Mapping[str, Any]]:
    """What the server sends for one request."""
    sent: list[Mapping[str, Any]] = []

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> Mapping[str, Any]:
        return {}

    asyncio.run(KeyGuard(_app)({"type": kind, "path": path, "headers": list(headers)}, receive, send))
    return sent


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, KEY)


def test_the_key_opens_every_route() -> None:
    for path in ("/v1/completions", "/collective_rpc", "/pause"):
        assert ask(path, (b"authorization", f"Bearer {KEY}".encode())) == [{"type": "http.answered"}]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer another")],
        [(b"authorization", KEY.encode())],
        [(b"authorization", b"")],
        [(b"authorization", "Bearer \u00e9".encode())],
        [(b"x-authorization", f"Bearer {KEY}".encode())],
        [(b"authorization", f"Bearer {KEY}".encode()), (b"authorization", b"Bearer another")],
    ],
)
def test_nothing_else_does(headers: list[tuple[bytes, bytes]]) -> None:
    for path in (
        "/v1/completions",
        "/collective_rpc",
        "/health/../collective_rpc",
        "//health",
        "/healthy",
        "/metrics/../pause",
        "",
    ):
        start, body = ask(path, *headers)
        assert (start["status"], body["type"]) == (401, "http.response.body")
        assert ask(path, *headers, kind="websocket") == [{"type": "websocket.close", "code": 1008}]


def test_health_metrics_and_the_start_of_the_server_need_no_key() -> None:
    assert ask("/health") == ask("/metrics") == [{"type": "http.answered"}]
    assert ask("", kind="lifespan") == [{"type": "lifespan.answered"}]


def test_a_server_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY)
    with pytest.raises(KeyError):
        KeyGuard(_app)


def test_a_run_that_hands_over_weights_gets_a_key_of_its_own_or_keeps_the_users() -> None:
    run = RunSpec(
        run=spec.Run(name="a", kind="rl", max_steps=3), data=Data(sources=()), rl=Rl(), server=Server(dtype="float32")
    )
    first: dict[str, str] = {}
    second: dict[str, str] = {}
    mine = {API_KEY: "mine"}
    for environment in (first, second, mine):
        create_key(run, environment)
    assert len({first[API_KEY], second[API_KEY]}) == 2
    assert len(first[API_KEY]) == 64
    assert mine == {API_KEY: "mine"}


def test_other_runs_need_none() -> None:
    environment: dict[str, str] = {}
    create_key(RunSpec(run=spec.Run(name="a", max_steps=3), data=Data(sources=())), environment)
    assert environment == {}
