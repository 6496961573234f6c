"""A published training that is written as a file of its program is read back with the settings of the page."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench"


def test_a_row_that_is_written_as_a_file_is_read_back_as_it_is(tmp_path: Path) -> None:
    sys.path.insert(0, str(BENCH))
    try:
        import memory_rows
        from estimate_foreign import UNSEEN, read_all
    finally:
        sys.path.pop(0)
    every = [row for path in (*memory_rows.TABLES, UNSEEN) for row in memory_rows.read(path)[0] if row.is_exact]
    rows = [row for row in every if row.group != "prime-rl"]
    found, left_out = read_all(rows, tmp_path)
    assert len(found) > 250
    assert {each.format for each in found} == {
        *("axolotl", "hf", "llama-factory", "ms-swift", "openrlhf", "torchtitan", "torchtune", "trl"),
    }
    assert not [why for why in left_out if " is refused: " in why]
    # what a page leaves open and its program decides: double quantisation, where the masters are, ZeRO-3 on one GPU
    lost = Counter(name for each in found for name in each.lost)
    assert set(lost) <= {"numerics", "quantization", "layout", "offload"}
    assert sum(lost.values()) < 60
