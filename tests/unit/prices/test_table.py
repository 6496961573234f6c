from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.prices.price import Price, PriceFault, PriceRows, catch, format_table, parse_table
from prime_train.registry import gpus

TODAY = date(2026, 11, 21)
GOOD = """# a comment
[[price]]
provider = "lambda"
gpu = "h100-80gb"
gpus = 8
usd_per_gpu_hour = 3.99
source = "lambda.ai"
as_of = "2026-11-01"

[[price]]
provider = "nebius"
gpu = "h200"
gpus = 1
usd_per_gpu_hour = 1.45
spot = true
region = "eu-north1"
source = "nebius.com"
as_of = 2026-11-02
"""


def rows(text: str) -> PriceRows:
    return parse_table(text, "prices.toml", TODAY)


def test_rows() -> None:
    assert rows(GOOD).prices == (
        Price("lambda", "h100-80gb", 8, 3.99, False, "", "lambda.ai", "2026-11-01"),
        Price("nebius", "h200", 1, 1.45, True, "eu-north1", "nebius.com", "2026-11-02"),
    )


@pytest.mark.parametrize(
    ("old", "new", "where", "said"),
    [
        ("= 3.99", "= nan", "line 2, column usd_per_gpu_hour", "nan is not a finite number"),
        ("= 3.99", "= inf", "line 2, column usd_per_gpu_hour", "inf is not a finite number"),
        ("= 3.99", "= -3.99", "line 2, column usd_per_gpu_hour", "-3.99 is not above zero"),
        ("= 3.99", "= 0", "line 2, column usd_per_gpu_hour", "0 is not above zero"),
        ("= 3.99", "= 3990", "line 2, column usd_per_gpu_hour", "3990 USD for one GPU hour"),
        ("gpus = 1\n", "gpus = 0\n", "line 10, column gpus", "not above zero"),
        ("h200", "h2000", "line 10, column gpu", "no GPU is called 'h2000'"),
        ("region =", "regoin =", "line 10, column regoin", "unknown column regoin"),
        ('provider = "lambda"\n', "", "line 2", "no provider"),
        ('"lambda"', "7", "line 2, column provider", "7 is not a name"),
        ("spot = true", 'spot = "yes"', "line 10, column spot", "'yes'"),
        ('"2026-11-01"', '"last week"', "line 2, column as_of", "'last week'"),
        ('"2026-11-01"', '"2027-01-01"', "line 2, column as_of", "not a day up to today"),
        ('"2026-11-01"', "1.5", "line 2, column as_of", "1.5"),
    ],
)
def test_a_wrong_value_names_line_and_column(old: str, new: str, where: str, said: str) -> None:
    assert old in GOOD
    (fault,) = rows(GOOD.replace(old, new, 1)).faults
    assert fault.where == f"prices.toml {where}"
    assert said in fault.what
    assert fault.why


@pytest.mark.parametrize("text", ["", "price = 7", "[[price]\n", "price = [1, 2]", "[price]\ngpu = 1"])
def test_what_is_no_table(text: str) -> None:
    fault = catch(parse_table, text, "prices.toml", TODAY)
    assert isinstance(fault, PriceFault)
    assert fault.where == "prices.toml"


names = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=30)


@given(
    st.lists(
        st.builds(
            Price,
            names,
            st.sampled_from([gpu.id for gpu in gpus.gpu_peaks()]),
            st.integers(1, 64),
            st.floats(0.01, 100).map(lambda usd: round(usd, 4)),
            st.booleans(),
            names.map(lambda text: text.strip(" ,")),
            names.map(lambda text: text.strip(" ,") or "x"),
            st.sampled_from(["", "2026-11-20", "2026-04"]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_written_is_read_again(prices: list[Price]) -> None:
    found = rows(format_table(prices))
    assert found.faults == ()
    assert sorted(found.prices) == sorted(prices)
