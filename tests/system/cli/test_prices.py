from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from prime_train.prices import store
from tests.fakes.price_server import PRIME_INTELLECT, VAST, Answer, PriceServer, prime_offer, running, vast_offer
from tests.unit.cli.commands import prime_train
from tests.unit.prices.test_skypilot import NEBIUS

KEY = "pit_0123456789abcdef"


@pytest.fixture
def server() -> Iterator[PriceServer]:
    with running() as started:
        started.answers[PRIME_INTELLECT] = [Answer(body={"items": [prime_offer()], "totalCount": 1})]
        started.answers[VAST] = [Answer(body={"offers": [vast_offer()]})]
        yield started


def prices(*arguments: str, here: Path, **environment: str) -> CompletedProcess[str]:
    return prime_train("prices", *arguments, cwd=here, PRIME_TRAIN_CACHE=str(here / "cache"), **environment)


def refresh(server: PriceServer, here: Path, *arguments: str, **environment: str) -> CompletedProcess[str]:
    addresses = {"PRIME_TRAIN_PRIMEINTELLECT_URL": server.url, "PRIME_TRAIN_VAST_URL": server.url}
    keys = {"PRIME_API_KEY": KEY, "VAST_API_KEY": ""}
    return prices("refresh", *arguments, here=here, **(addresses | keys | environment))


def own(here: Path) -> str:
    path = here / "cache" / "prices.toml"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_the_shipped_table_is_shown_with_a_word_on_its_age(tmp_path: Path) -> None:
    done = prices("show", here=tmp_path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["GPU", "KIND", "OFFERS", "LOW", "MEDIAN", "HIGH", "CHEAPEST", "AT", "SEEN"]
    assert any(line.startswith("h100-80gb ") and " spot " in line for line in lines)
    assert "older than 30 days" in done.stderr
    assert "undated" not in done.stdout
    assert "prime-train prices refresh" in done.stderr


def test_one_gpu_is_shown_offer_by_offer(tmp_path: Path) -> None:
    done = prices("show", "--gpu", "RTX4090", here=tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].split()[:4] == ["vast", "on-demand", "8", "$0.35"]


def test_json_of_the_table(tmp_path: Path) -> None:
    document = json.loads(prices("show", "--gpu", "b200", "--json", here=tmp_path).stdout)
    assert document["version"] == 1
    assert {row["gpu"] for row in document["prices"]} == {"b200"}
    row = document["prices"][0]
    assert row["usd_per_hour"] == pytest.approx(row["usd_per_gpu_hour"] * row["gpus"], abs=1e-3)
    age = (datetime.date.today() - datetime.date(*map(int, f"{row['as_of']}-01".split("-")[:3]))).days
    assert (row["age_days"], row["stale"]) == (age, age > 30)
    assert document["stale"] == sum(each["stale"] for each in document["prices"]) > 0


def test_an_unknown_gpu_names_the_nearest(tmp_path: Path) -> None:
    done = prices("show", "--gpu", "h100-80g", here=tmp_path)
    assert done.returncode == 2
    assert "did you mean h100-80gb?" in done.stderr


def test_an_imported_catalogue_is_shown_then(tmp_path: Path) -> None:
    (tmp_path / "nebius").mkdir()
    (tmp_path / "nebius" / "vms.csv").write_text(NEBIUS)
    done = prices("import", "nebius/vms.csv", "--as-of", "2026-01-31", here=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 prices (SkyPilot, as of 2026-01-31) went into" in done.stdout
    shown = json.loads(prices("show", "--json", here=tmp_path).stdout)
    dated = [row for row in shown["prices"] if row["source"] == "SkyPilot catalogue, nebius"]
    assert {(row["gpu"], row["spot"]) for row in dated} == {
        ("h100-80gb", False),
        ("h100-80gb", True),
        ("h200", False),
        ("h200", True),
    }
    assert {row["as_of"] for row in dated} == {"2026-01-31"}
    stale = prices("show", "--gpu", "h200", here=tmp_path).stderr
    assert "older than 30 days" in stale


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "offers.json").write_text(json.dumps({"offers": [vast_offer()]}))
    done = prices("import", "offers.json", "--dry-run", here=tmp_path)
    assert done.returncode == 0
    assert "would go into" in done.stdout
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("import", "gone.csv"), "there is no such file"),
        (("import", "nan.csv", "--provider", "nebius"), "nan.csv line 3, column Price"),
        (("import", "good.csv"), "the cloud of these prices is not known"),
        (("import", "good.csv", "--provider", "nebius", "--as-of", "2999-01-01"), "it is in the future"),
        (("import", "good.csv", "--provider", "nebius", "--as-of", "today"), "YYYY-MM-DD"),
        (("refresh", "--provider", "vats"), "did you mean vast?"),
        (("refresh", "--provider", "aws"), "there are primeintellect, vast"),
    ],
)
def test_wrong_use_is_reported_in_four_parts(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(NEBIUS)
    (tmp_path / "nan.csv").write_text(NEBIUS.replace("23.60", "nan"))
    done = prices(*arguments, here=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert [line.split()[0] for line in done.stderr.splitlines() if line[:8].strip()][0:4] == [
        "error:",
        "what",
        "why",
        "fix",
    ]
    assert own(tmp_path) == ""


def test_refresh_asks_both_and_keeps_what_they_state(server: PriceServer, tmp_path: Path) -> None:
    done = refresh(server, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Prime Intellect: 1 price of today", "Vast: 2 prices of today"]
    text = own(tmp_path)
    assert 'provider = "primeintellect/nebius"' in text
    assert 'provider = "vast"' in text
    assert KEY not in text + done.stdout + done.stderr
    shown = prices("show", "--json", here=tmp_path).stdout
    assert sum(row["age_days"] == 0 for row in json.loads(shown)["prices"]) == 3


def test_what_one_states_is_kept_where_the_other_fails(server: PriceServer, tmp_path: Path) -> None:
    server.answers[PRIME_INTELLECT] = [Answer(401)]
    done = refresh(server, tmp_path)
    assert done.returncode == 4
    assert f"error: Prime Intellect {server.url}{PRIME_INTELLECT}" in done.stderr
    assert "the key is refused (HTTP 401)" in done.stderr
    assert "set PRIME_API_KEY to a valid key" in done.stderr
    assert KEY not in done.stderr + done.stdout
    assert 'provider = "vast"' in own(tmp_path)
    assert "primeintellect" not in own(tmp_path)


def test_a_failed_refresh_leaves_earlier_prices(server: PriceServer, tmp_path: Path) -> None:
    assert refresh(server, tmp_path).returncode == 0
    before = own(tmp_path)
    for path in (PRIME_INTELLECT, VAST):
        server.answers[path] = [Answer(404)]
    assert refresh(server, tmp_path).returncode == 4
    assert own(tmp_path) == before


def test_without_a_key_only_vast_is_asked(server: PriceServer, tmp_path: Path) -> None:
    done = refresh(server, tmp_path, PRIME_API_KEY="")
    assert done.returncode == 0
    assert "Prime Intellect is skipped: PRIME_API_KEY is not set" in done.stderr
    assert {path for path, _, _ in server.asked} == {VAST}
    named = refresh(server, tmp_path, "--provider", "primeintellect", PRIME_API_KEY="")
    assert named.returncode == 4
    assert "export PRIME_API_KEY=" in named.stderr


def test_json_of_a_refresh(server: PriceServer, tmp_path: Path) -> None:
    server.answers[VAST] = [Answer(403)]
    done = refresh(server, tmp_path, "--json")
    assert done.returncode == 4
    by_id = {entry["provider"]: entry for entry in json.loads(done.stdout)["providers"]}
    assert by_id["primeintellect"]["prices"] == 1
    assert by_id["primeintellect"]["problem"] is None
    assert by_id["vast"]["problem"]["what"] == "the key may not read prices (HTTP 403)"


def test_a_table_that_was_spoilt_by_hand_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    path = store.user_file()
    path.parent.mkdir()
    path.write_text('[[price]]\nprovider = "x"\ngpu = "h200"\ngpus = 1\nusd_per_gpu_hour = nan\nsource = "me"\n')
    done = prices("show", here=tmp_path)
    assert done.returncode == 2
    assert "line 1, column usd_per_gpu_hour" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(path.parent) == ["prices.toml"]
