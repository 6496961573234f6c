"""The prefilter finds any of the words and any of the patterns."""

from __future__ import annotations

import base64
import random

import pytest

from prime_train.diagnose.log_scanner import scan
from prime_train.diagnose.prefilter import holds_any


@pytest.mark.parametrize(
    ("literals", "patterns", "found"),
    [
        (("no (space)", "boom"), (r"^\d+:$",), ["boom!", "no (space) left", "a\n12:\nb"]),
        (("boom",), (), ["boom!"]),
        ((), (r"^\d+:$",), ["a\n12:\nb"]),
        ((), (), []),
    ],
)
def test_a_text_with_a_word_or_a_pattern_is_found(
    literals: tuple[str, ...], patterns: tuple[str, ...], found: list[str]
) -> None:
    texts = ["boom!", "no (space) left", "a\n12:\nb", "no space left", "12: a", ""]
    search = holds_any(literals, patterns)
    assert [text for text in texts if search(text)] == found


def test_a_failure_behind_megabytes_without_words_is_found() -> None:
    draw = random.Random(1)
    blobs = "".join(base64.b64encode(draw.randbytes(90)).decode() + "\n" for _ in range(20_000))
    log = f"{blobs}ValueError: CUDA out of memory. Tried to allocate 2.00 GiB\n{blobs}".encode()
    assert [hit.match.signature.id for hit in scan([log], "a.log").hits if hit.match] == ["CUDA001"]
