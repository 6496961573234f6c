from __future__ import annotations

import pytest

from prime_train.away.monitor.github import Repository, open_repository
from prime_train.away.monitor.poll import RunStatus
from prime_train.core.errors import ExitCode, UserError
from tests.fakes.github_server import REPOSITORY, TOKEN, GithubServer, serve
from tests.unit.away.world import World

WORLD = RunStatus("alive", "", False, 1)


def open_at(server: GithubServer, waits: list[float], token: str = TOKEN) -> Repository:
    return Repository(server.url, REPOSITORY, token, waits.append, timeout_s=5)


def test_an_issue_and_its_comments() -> None:
    world = World(WORLD)
    with serve(world) as server:
        repository = open_at(server, [])
        issue = repository.ask("POST", "/issues", {"title": "a", "body": "b", "labels": ["prime-train-monitor"]})
        repository.ask("POST", f"/issues/{issue['number']}/comments", {"body": "first"})
        repository.ask("PATCH", f"/issues/{issue['number']}", {"body": "changed"})
        listed = repository.ask("GET", "/issues?labels=prime-train-monitor")
        assert [one["body"] for one in listed] == ["changed"]
    assert world.comments[1] == ["first"]


@pytest.mark.parametrize(
    "fault",
    [
        (500, {}),
        (502, {}),
        (429, {"Retry-After": "7"}),
        (403, {"X-RateLimit-Remaining": "0"}),
        (429, {"Retry-After": "\u00b2"}),
    ],
)
def test_a_temporary_failure_is_tried_again(fault: tuple[int, dict[str, str]]) -> None:
    waits: list[float] = []
    with serve(World(WORLD)) as server:
        server.faults = [fault]
        assert open_at(server, waits).ask("GET", "/issues?labels=prime-train-monitor") == []
    assert waits == [7.0 if fault[1].get("Retry-After") == "7" else 1.0]


def test_a_comment_is_never_posted_twice() -> None:
    with serve(World(WORLD)) as server:
        server.faults = [(502, {})]
        with pytest.raises(UserError) as failed:
            open_at(server, []).ask("POST", "/issues", {"title": "a", "body": "b", "labels": []})
    assert failed.value.exit_code == ExitCode.OUT_OF_REACH
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [301, 401, 403, 404, 410, 422])
def test_a_lasting_failure_is_reported_at_once(status: int) -> None:
    waits: list[float] = []
    with serve(World(WORLD)) as server:
        server.faults = [(status, {"Location": "http://127.0.0.1:9/"})]
        with pytest.raises(UserError) as failed:
            open_at(server, waits).ask("GET", "/issues?state=open")
    assert str(status) in failed.value.what
    assert TOKEN not in str(failed.value)
    assert waits == []


def test_a_server_that_is_gone() -> None:
    with serve(World(WORLD)) as server:
        repository = open_at(server, [])
    with pytest.raises(UserError) as failed:
        repository.ask("GET", "/issues")
    assert failed.value.exit_code == ExitCode.OUT_OF_REACH


@pytest.mark.parametrize(
    "changes",
    [
        {"GITHUB_REPOSITORY": ""},
        {"GITHUB_REPOSITORY": "a/b/c"},
        {"GITHUB_REPOSITORY": "a/.."},
        {"GITHUB_REPOSITORY": "a/b?x"},
        {"GITHUB_TOKEN": ""},
        {"GITHUB_API_URL": "http://example.com"},
    ],
)
def test_an_environment_that_is_refused(changes: dict[str, str]) -> None:
    good = {"GITHUB_REPOSITORY": REPOSITORY, "GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": "https://api.github.com"}
    assert open_repository(good).name == REPOSITORY
    with pytest.raises(UserError):
        open_repository(good | changes)
