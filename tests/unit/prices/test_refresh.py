"""The price services, asked through a server of ours that answers as they do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from prime_train.core.errors import ExitCode
from prime_train.prices.refresh import (
    SERVICES,
    Failure,
    FailureKind,
    RefreshResult,
    RetryPolicy,
    Service,
    has_key,
    problem,
    refresh,
)
from tests.fakes.price_server import PRIME_INTELLECT, VAST, Answer, PriceServer, prime_offer, running, vast_offer

KEY = "pit_0123456789abcdef"
BY_ID = {service.id: service for service in SERVICES}
PATHS = {"primeintellect": PRIME_INTELLECT, "vast": VAST}
GOOD: dict[str, Any] = {
    "primeintellect": {"items": [prime_offer()], "totalCount": 1},
    "vast": {"offers": [vast_offer()]},
}


@pytest.fixture
def server() -> Iterator[PriceServer]:
    with running() as started:
        yield started


class Waits:
    """Notes each wait instead of taking it."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.taken_s.append(seconds)


def ask(
    server: PriceServer,
    service: str,
    waits: Waits | None = None,
    read_s: float = 5.0,
    changes: dict[str, str] | None = None,
) -> RefreshResult:
    wanted = BY_ID[service]
    environment = {wanted.address_variable: server.url, wanted.key_variable: KEY} | (changes or {})
    return refresh(wanted, environment, "2026-11-21", RetryPolicy(read_s, 5.0, (0.5, 2.0), waits or Waits()))


@pytest.mark.parametrize("service", PATHS)
def test_prices_come_with_their_day_and_source(service: str, server: PriceServer) -> None:
    server.answers[PATHS[service]] = [Answer(body=GOOD[service])]
    answer = ask(server, service)
    assert answer.problem is None
    assert {(price.gpu, price.as_of) for price in answer.rows.prices} == {("h100-80gb", "2026-11-21")}
    assert {price.source for price in answer.rows.prices} == {server.url + PATHS[service]}


@pytest.mark.parametrize("service", PATHS)
def test_the_key_is_sent_as_documented(service: str, server: PriceServer) -> None:
    server.answers[PATHS[service]] = [Answer(body=GOOD[service])]
    ask(server, service)
    assert {headers["Authorization"] for _, _, headers in server.asked} == {f"Bearer {KEY}"}


def test_prime_intellect_is_asked_page_by_page(server: PriceServer) -> None:
    pages = [[prime_offer(gpuCount=count) for count in counts] for counts in ((1, 2), (4,), (8,))]
    server.answers[PRIME_INTELLECT] = [Answer(body={"items": page, "totalCount": 4}) for page in pages]
    answer = ask(server, "primeintellect")
    assert {price.gpus for price in answer.rows.prices} == {1, 2, 4, 8}
    assert [query["page"] for query in server.questions(PRIME_INTELLECT)] == [["1"], ["2"], ["3"]]


def test_vast_is_asked_for_both_kinds(server: PriceServer) -> None:
    server.answers[VAST] = [
        Answer(body={"offers": [vast_offer()]}),
        Answer(body={"offers": [vast_offer(dph_total=8.0)]}),
    ]
    answer = ask(server, "vast")
    assert {(price.spot, price.usd_per_gpu_hour) for price in answer.rows.prices} == {(False, 2.0), (True, 1.0)}
    asked = [json.loads(query["q"][0]) for query in server.questions(VAST)]
    assert [wanted["type"] for wanted in asked] == ["on-demand", "bid"]
    assert {"H100_SXM", "H100 SXM"} <= set(asked[0]["gpu_name"]["in"])


FAULTS = [
    (Answer(401, {"detail": "Invalid"}), "the key is refused (HTTP 401)", 1),
    (Answer(403, {}), "the key may not read prices (HTTP 403)", 1),
    (Answer(404, {}), "the address does not exist (HTTP 404)", 1),
    (Answer(429, {}), "too many requests (HTTP 429)", 3),
    (Answer(500, {}), "the service has an internal error (HTTP 500)", 3),
    (Answer(503, "<html>busy</html>"), "the service has an internal error (HTTP 503)", 3),
    (Answer(302, "", {"Location": "http://127.0.0.1:1/elsewhere"}), "neither prices nor a known error (HTTP 302)", 1),
    (Answer(418, {}), "neither prices nor a known error (HTTP 418)", 1),
    (Answer(body="<html>log in</html>"), "the answer is not from the price service", 1),
    (Answer(body={"detail": "moved"}), "the answer is not from the price service", 1),
    (Answer(body='{"items": [{"cl'), "the answer is cut off", 3),
    (Answer(body={"items": [prime_offer()]}, cut_to=60), "the answer is cut off (60 of", 3),
]


@pytest.mark.parametrize(("fault", "said", "tries"), FAULTS, ids=[said for _, said, _ in FAULTS])
@pytest.mark.parametrize("service", PATHS)
def test_each_fault_is_reported_apart(service: str, fault: Answer, said: str, tries: int, server: PriceServer) -> None:
    server.answers[PATHS[service]] = [fault]
    answer = ask(server, service)
    problem = answer.problem
    assert problem is not None
    assert said in problem.what
    assert all((problem.where, problem.why, problem.fix))
    assert problem.exit_code == ExitCode.OUT_OF_REACH
    assert KEY not in str(problem)
    assert answer.rows.prices == ()
    assert len(server.asked) == tries  # what may pass is asked again, what will not is not


def test_silence_is_given_up(server: PriceServer) -> None:
    server.answers[VAST] = [Answer(silent=True)]
    answer = ask(server, "vast", read_s=0.2)
    assert answer.problem is not None
    assert answer.problem.what == "no answer in time (no answer within 0.2 s)"
    assert len(server.asked) == 3


@pytest.mark.parametrize("service", PATHS)
def test_no_process_there(service: str, server: PriceServer) -> None:
    answer = ask(server, service, changes={BY_ID[service].address_variable: "http://127.0.0.1:1"})
    assert answer.problem is not None
    assert answer.problem.what.startswith("it is out of reach")


@pytest.mark.parametrize("service", PATHS)
def test_a_passing_fault_passes(service: str, server: PriceServer) -> None:
    waits = Waits()
    server.answers[PATHS[service]] = [Answer(503), Answer(429, {}, {"Retry-After": "7"}), Answer(body=GOOD[service])]
    assert ask(server, service, waits).problem is None
    assert waits.taken_s == [0.5, 7.0]


@pytest.mark.parametrize("after", ["\u00b2", "soon", "-3", "9" * 400, "1e3"])
def test_a_wait_that_is_no_number_of_seconds_is_the_usual_one(after: str, server: PriceServer) -> None:
    waits = Waits()
    server.answers[VAST] = [Answer(429, {}, {"Retry-After": after}), Answer(body=GOOD["vast"])]
    assert ask(server, "vast", waits).problem is None
    assert waits.taken_s == [0.5]


def test_a_wait_that_is_too_long_is_not_taken(server: PriceServer) -> None:
    waits = Waits()
    server.answers[VAST] = [Answer(429, {}, {"Retry-After": "3600"})]
    answer = ask(server, "vast", waits)
    assert answer.problem is not None
    assert waits.taken_s == []


def test_an_empty_answer_is_asked_again_and_never_taken_for_no_stock(server: PriceServer) -> None:
    empty = Answer(body={"items": [], "totalCount": 0})
    server.answers[PRIME_INTELLECT] = [empty, Answer(body=GOOD["primeintellect"])]
    assert ask(server, "primeintellect").problem is None
    server.answers[PRIME_INTELLECT] = [empty]
    problem = ask(server, "primeintellect").problem
    assert problem is not None
    assert "no offer of a known GPU" in problem.what


@pytest.mark.parametrize("service", PATHS)
def test_a_wrong_price_among_others_is_left_out_and_reported(service: str, server: PriceServer) -> None:
    bad = {
        "primeintellect": {"items": [prime_offer(prices={"onDemand": -1}), prime_offer()], "totalCount": 2},
        "vast": {"offers": [vast_offer(dph_total=float("nan")), vast_offer()]},
    }
    server.answers[PATHS[service]] = [Answer(body=bad[service])]
    answer = ask(server, service)
    assert answer.problem is None
    assert answer.rows.prices
    assert answer.rows.faults


@pytest.mark.parametrize("key", ["", "   ", "pit\nX-Evil: 1", "schlüssel"])
def test_a_key_that_cannot_be_one_is_not_sent(key: str, server: PriceServer) -> None:
    problem = ask(server, "primeintellect", changes={"PRIME_API_KEY": key}).problem
    assert problem is not None
    assert problem.what == "PRIME_API_KEY holds no key"
    assert server.asked == []
    if key.strip():
        assert key not in str(problem)


def test_vast_is_asked_without_a_key_too(server: PriceServer) -> None:
    server.answers[VAST] = [Answer(body=GOOD["vast"])]
    assert ask(server, "vast", changes={"VAST_API_KEY": ""}).problem is None
    assert all("Authorization" not in headers for _, _, headers in server.asked)


def test_a_key_travels_only_encrypted_or_within_this_machine(server: PriceServer) -> None:
    problem = ask(server, "primeintellect", changes={"PRIME_TRAIN_PRIMEINTELLECT_URL": "http://example.com"}).problem
    assert problem is not None
    assert problem.what == "not an https:// address"


def test_who_has_a_key() -> None:
    services: dict[str, Service] = BY_ID
    assert not has_key(services["primeintellect"], {})
    assert has_key(services["primeintellect"], {"PRIME_API_KEY": KEY})
    assert has_key(services["vast"], {})


def test_every_trouble_has_words() -> None:
    for service in SERVICES:
        for kind in FailureKind:
            told = problem(service, Failure(kind, "1 of 2"), "https://x")
            assert "{" not in str(told)
            assert told.fix
