from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prime_train.away.sky.record import bucket_fault, bucket_name, job_fault, job_name

SKY = re.compile(r"[a-zA-Z0-9]+(?:[._-]{1,2}[a-zA-Z0-9]+)*")


@example("a GOOGLE run")
@example("goo" + "google" + "gle")
@given(st.text(max_size=200))
def test_any_run_gets_a_legal_job_and_bucket(run_name: str) -> None:
    name = job_name(run_name)
    assert SKY.fullmatch(name)
    assert job_fault(name) == ""
    assert job_name(name) == name
    for store in ("s3", "gcs", "azure", "nebius"):
        assert bucket_fault(bucket_name(name, "0123456789"), store) == ""


@pytest.mark.parametrize("name", ["h100-80gb", "run.2", "a", "A-b.c"])
def test_a_legal_name_stays(name: str) -> None:
    assert job_name(name) == name


@pytest.mark.parametrize(
    ("name", "store"),
    [
        ("ab", "s3"),
        ("x" * 64, "s3"),
        ("Upper", "s3"),
        ("under_score", "gcs"),
        ("-start", "s3"),
        ("end-", "s3"),
        ("two..dots", "s3"),
        ("192.168.5.4", "s3"),
        ("xn--name", "s3"),
        ("name-s3alias", "s3"),
        ("my-google-bucket", "gcs"),
        ("dot.dot", "azure"),
        ("two--hyphens", "azure"),
        ("new\nline", "s3"),
    ],
)
def test_an_illegal_bucket_has_a_reason(name: str, store: str) -> None:
    assert bucket_fault(name, store)
