"""Evaluates `prime-train estimate FILE` on configs of other trainers, by published memory, beside other tools.

    python bench/estimate_foreign.py [--files FOLDER] [--report FILE] [--alone] [--write]

Each published row is written as the file or command of its own program (foreign_files.py) and read by the functions
that `prime-train estimate` uses; only the GPUs are those of the row, as --gpus would name them. Fit and interval saw no
row of the same table. No fit ever had the rows of anchors/memory_rows_foreign.csv, "unseen", and of
memory_rows_guides.csv, "guides", which were written before the first look at the estimates. --files keeps
the files. The last lines list what was left out, and where a file lost a setting on the way.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import estimate_memory
import foreign_files
import memory_rows
import record
from estimate_memory import Judged
from memory_held_out import held_out
from memory_tools import tools
from row_cells import Unreadable

from prime_train.cli.estimate import inputs
from prime_train.cli.estimate.inputs import EstimateOptions
from prime_train.core.errors import UserError
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.values import RoleMemory

UNSEEN = memory_rows.DEVELOPMENT.with_name("memory_rows_foreign.csv")  # no fit has them
GUIDES = memory_rows.DEVELOPMENT.with_name("memory_rows_guides.csv")  # nor these: figures in guides of the programs
BARS = "mean error <= 10 %, bound above >= 90 %, refused though it ran <= 5 %, accepted though out of memory <= 5 %"
_ALIKE = ("program", "era", "attention", "shape")  # names of the same thing, or not of the file


class ReadBack(NamedTuple):
    """A row as its file describes it. `format`: that of the file; `lost`: fields of the setup that differ."""

    row: memory_rows.Row
    format: str
    lost: tuple[str, ...]


def read_back(row: memory_rows.Row, folder: Path) -> ReadBack:
    """The row with the run of its file. Raises Unreadable for a row without one, and UserError as the command does."""
    file = foreign_files.write(row)
    path = folder / row.id.replace(":", "-") / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.text, encoding="utf-8")
    options = EstimateOptions(str(path), offline=True)
    reading = inputs.parse_config(options)
    shape = inputs.find_shape(inputs.check_run(reading), reading, options)
    draft = inputs.draft_of(reading, row.hardware.gpus)
    assert draft is not None
    setup, published = (setup_of(run, row.hardware, row.shape) for run in (draft.run, row.run))
    differ = (name for name in setup._fields if getattr(setup, name) != getattr(published, name))
    lost = tuple(name for name in differ if name not in _ALIKE)
    return ReadBack(row._replace(run=draft.run, shape=shape, program=setup.program), draft.format, lost)


def read_all(rows: Sequence[memory_rows.Row], folder: Path) -> tuple[list[ReadBack], Counter[str]]:
    """The rows that have a file, and why the others have none."""
    found: list[ReadBack] = []
    left_out: Counter[str] = Counter()
    for row in rows:
        try:
            found.append(read_back(row, folder))
        except Unreadable as error:
            left_out[str(error)] += 1
        except UserError as error:
            left_out[f"{row.id} is refused: {error.what}"] += 1
    return found, left_out


def groups_of(judged: Sequence[Judged], read: Sequence[ReadBack]) -> Iterator[tuple[str, list[Judged]]]:
    """All rows with a peak, those that no fit ever had, and those of each format."""
    formats = {each.row.id: each.format for each in read}
    yield "all", list(judged)
    for name, path in (("unseen", UNSEEN), ("guides", GUIDES)):
        yield name, [each for each in judged if each.row.id.startswith(path.stem)]
    for name in sorted(set(formats.values())):
        yield name, [each for each in judged if formats[each.row.id] == name]


def table(
    judged: Sequence[Judged], read: Sequence[ReadBack], memory_of: dict[str, RoleMemory], names: Sequence[str]
) -> list[dict[str, Any]]:
    """One line per group for prime-train, and for each other tool on the rows that it supports."""
    lines: list[dict[str, Any]] = []
    for group, members in groups_of(judged, read):
        if not members:
            continue
        lines.append(estimate_memory.summary(group, "prime-train", _ours(members, memory_of)))
        for number, name in enumerate(names):
            pairs = [(each, estimate_memory.tool_figure(each, number)) for each in members]
            known = [(each, figure) for each, figure in pairs if figure is not None]
            if known:
                lines.append(estimate_memory.summary(group, name, [figure for _, figure in known]))
                same = _ours([each for each, _ in known], memory_of)
                lines.append(estimate_memory.summary(group, "  prime-train on these rows", same))
    return lines


def _ours(members: Sequence[Judged], memory_of: dict[str, RoleMemory]) -> list[estimate_memory.Figure]:
    return [estimate_memory.ours(each, memory_of[each.row.id]) for each in members]


def out_of_memory_lines(
    ooms: Sequence[Judged], memory_of: dict[str, RoleMemory], names: Sequence[str]
) -> list[dict[str, Any]]:
    """How many runs that ran out of memory each tool accepts."""
    accepted = estimate_memory.accepted(ooms, memory_of)
    lines: list[dict[str, Any]] = [{"group": "out of memory", "by": "prime-train", **accepted}]
    for number, name in enumerate(names):
        known = [(each.others[number], each.row.hardware.usable_bytes) for each in ooms]
        fits = [estimate <= usable for estimate, usable in known if estimate is not None]
        if fits:
            lines.append({"group": "out of memory", "by": name, "n": len(fits), "accepted": sum(fits) / len(fits)})
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, help="keep the written files in this folder")
    parser.add_argument("--report", type=Path, help="write one line per row here, CSV")
    parser.add_argument("--alone", action="store_true", help="skip the other tools, which may import torch")
    parser.add_argument("--write", action="store_true", help="write bench/results/estimate_foreign.json")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    every = [row for path in (*memory_rows.TABLES, UNSEEN, GUIDES) for row in memory_rows.read(path)[0]]
    rows = [row for row in every if row.group != "prime-rl" and row.is_exact]
    with tempfile.TemporaryDirectory() as temporary:
        read, left_out = read_all(rows, options.files or Path(temporary))
    others = () if options.alone else tools()
    judged, failed = estimate_memory.judge_all([each.row for each in read], others)
    memory_of = held_out([each.row for each in judged])
    names = [tool.name for tool in others]
    ran = [each for each in judged if each.row.ran and each.row.measured_gib]
    ooms = [each for each in judged if not each.row.ran]
    lines = [*table(ran, read, memory_of, names), *out_of_memory_lines(ooms, memory_of, names)]
    estimate_memory.show(lines, {"these formats": BARS})
    lost = Counter(f"{each.format}: {name}" for each in read for name in each.lost)
    print(f"{len(read)} files, {len(rows) - len(read)} rows without one")
    print("\n".join(f"  {count} x {why}" for why, count in left_out.most_common()))
    print("fields that a file does not give as the page does:")
    print("\n".join(f"  {count} x {name}" for name, count in sorted(lost.items())))
    print("\n".join(f"not estimated: {id}: {why}" for id, why in failed))
    if options.report:
        held = [each._replace(memory=memory_of[each.row.id]) for each in judged]
        estimate_memory.write_report(estimate_memory.report_of(held, (), failed), options.report)
    if options.write:
        print(record.write("estimate_foreign", estimate_memory.kept(lines, "files of other trainers")))


if __name__ == "__main__":
    main()
