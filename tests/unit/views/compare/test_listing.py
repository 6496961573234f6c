"""A table, a document and CSV of runs."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from prime_train.config.differences import Difference
from prime_train.estimate.values import Interval
from prime_train.views.compare import listing
from prime_train.views.compare.ends import Best
from prime_train.views.compare.rows import RunRow
from prime_train.views.text import sanitize

WHOLE = RunRow(
    Path("/runs/one"),
    "one",
    "running",
    kind="rl",
    step=1500,
    max_steps=3000,
    metric="reward",
    best=Best(0.75, False),
    last=0.5,
    tokens_per_s=12_345.0,
    usd=Interval(10.0, 12.0, 300.0),
    wandb="https://wandb.ai/me/nano/runs/1",
    changed=tuple(Difference(f"optim.key{place}", place, str(place)) for place in range(6)),
)


def test_the_cells_of_a_run() -> None:
    cells = dict(zip(listing.HEADER, listing.cells(WHOLE, wide=False), strict=True))
    assert cells["CHANGED"] == "optim.key0, optim.key1, optim.key2, optim.key3 and 2 more"
    assert (cells["STEP"], cells["BEST"], cells["LAST"]) == ("1,500/3,000", ">=0.75", "0.5")
    assert (cells["TOKENS/S"], cells["COST"]) == ("12.3 k", "$10.00-$300")
    assert "optim.key5 5 -> 5" in dict(zip(listing.HEADER, listing.cells(WHOLE, wide=True), strict=True))["CHANGED"]


def test_what_is_not_known_is_not_a_number() -> None:
    cells = dict(zip(listing.HEADER, listing.cells(RunRow(Path("x"), "x", "died", "lost"), wide=False), strict=True))
    assert (cells["COST"], cells["BEST"], cells["STATE"], cells["CHANGED"]) == ("not known", "", "died: lost", "-")


def test_the_document_is_json_and_has_no_number_that_is_not_finite() -> None:
    row = WHOLE._replace(last=math.nan, best=Best(math.inf, True), tokens_per_s=-math.inf)
    document = json.loads(json.dumps(listing.document(row), allow_nan=False))
    assert (document["last"], document["best"], document["tokens_per_s"]) == (None, None, None)
    assert document["changed"][0] == {"key": "optim.key0", "before": 0, "after": "0"}
    assert document["usd"]["high"] == 300


def test_a_name_cannot_control_the_terminal() -> None:
    cells = listing.cells(WHOLE._replace(name="\x1b[2Jone\ntwo"), wide=True)
    assert cells[0] == "\ufffd[2Jone two"


@given(st.text(max_size=20), st.sampled_from(("=", "+", "-", "@", "\t", "")))
def test_no_cell_is_a_formula_and_every_text_is_read_back(text: str, start: str) -> None:
    written = listing.csv_text([("header", 1), (start + text, -0.5)])
    header, (cell, number) = csv.reader(io.StringIO(written, newline=""))
    assert header == ["header", "1"]
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert cell.removeprefix("'") == sanitize(start + text).removeprefix("'")
    assert number == "-0.5", "a number is no formula"


def test_the_csv_has_a_line_for_each_run_and_nothing_for_what_is_not_known() -> None:
    header, one, two = csv.reader(io.StringIO(listing.as_csv([WHOLE, RunRow(Path("x"), "=x()", "died")])))
    assert dict(zip(header, one, strict=True))["best"] == "0.75"
    values = dict(zip(header, two, strict=True))
    assert (values["name"], values["best"], values["started"], values["changed"]) == ("'=x()", "", "", "")
