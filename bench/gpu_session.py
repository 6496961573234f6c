"""Answers on one GPU what only a GPU can answer, in two parts that together fit into fifteen minutes.

    python bench/gpu_session.py --wheels .whl     where there is a network: the packages that the machine lacks
    python bench/gpu_session.py A                 nine minutes: kernels, speed, gaps, FSDP2, experts
    python bench/gpu_session.py B                 four minutes: kill and resume, rewards, memory, fp8
    python bench/gpu_session.py --table           measured beside expected

Each step has its own process and time limit, and fails alone. The results of a part, gpu_a.json or gpu_b.json, are
written whenever a step has ended: into $OUT where that is set, else into bench/results. Rows that a step had measured
before it was killed are in them. Without a GPU it ends with exit code 4, and with 1 if a step failed.

`--device cpu --tiny` runs every step on the CPU with models of some thousand parameters. It shows that the steps work,
measures nothing, and writes nothing into bench/results. docs/gpu.md has the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import record
from gpu import table, wheels
from gpu.session import ROOT, Entry, Session, find_results, run_part
from gpu.steps import PART_S, STEPS

RESULTS = record.HERE / "results"
WHEELS = ROOT / ".whl"


def main(arguments: list[str]) -> int:
    began_s = time.monotonic()
    given = _parse(arguments)
    if given.list_wheels:
        print(wheels.list_wheels(), end="")
        return 0
    if given.wheels is not None:
        wheels.download(given.wheels, given.python)
        return 0
    if given.table is not None:
        print(table.show(given.table or [find_results(_results_folder(), part) for part in PART_S]), end="")
        return 0
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the step is ended, too
    steps = [step for step in STEPS if step.part == given.part and given.step in (None, step.name)]
    with tempfile.TemporaryDirectory() as scratch:
        session = _open_session(given, Path(scratch))
        left_s = None if given.tiny else PART_S[given.part] - (time.monotonic() - began_s)
        code = run_part(steps, session, left_s)
        print(table.show([find_results(session.results, given.part)]), end="", flush=True)
    return code


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=sorted(PART_S))
    parser.add_argument("--step", metavar="NAME", help="run only this step of the part; the others stay in its results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes; measures nothing")
    parser.add_argument("--site", type=Path, metavar="DIR", help="has the packages, in the place of .whl/*.whl")
    parser.add_argument("--list-wheels", action="store_true", help="print the packages that the machine lacks")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="download those packages, and build this one")
    parser.add_argument("--python", default="3.12", help="of the machine, for --wheels")
    parser.add_argument("--table", type=Path, nargs="*", metavar="FILE", help="of these results; default: both parts'")
    given = parser.parse_args(arguments)
    if given.part is None and not given.list_wheels and given.wheels is None and given.table is None:
        parser.error("name a part, A or B, or one of --list-wheels, --wheels and --table")
    if given.device == "cpu" and not given.tiny:
        parser.error("a CPU measures nothing that is asked here: add --tiny")
    names = [step.name for step in STEPS if step.part == given.part]
    if given.step is not None and given.step not in names:
        parser.error(f"part {given.part} has no step {given.step}: {', '.join(names)}")
    return given


def _results_folder() -> Path:
    return Path(os.environ["OUT"]) if os.environ.get("OUT") else RESULTS


def _open_session(given: argparse.Namespace, scratch: Path) -> Session:
    """Install the wheels and choose the folders. A tiny session without $OUT leaves nothing."""
    has_folder = bool(os.environ.get("OUT"))
    results = scratch if given.tiny and not has_folder else _results_folder()
    site, fault = given.site, ""
    if site is None:
        site = scratch / "site"
        fault = wheels.install(WHEELS, site)
    return Session(
        device=given.device,
        tiny=given.tiny,
        results=results,
        work=results if has_folder else scratch,
        variables=_variables(site, given.tiny),
        commit=wheels.read_commit(WHEELS),
        install_fault=fault,
        earlier=_read_others(find_results(results, given.part), given.step),
    )


def _variables(site: Path, tiny: bool) -> dict[str, str]:
    """The environment of the steps. The tree is before the packages, so that it is what is measured."""
    # The threads of a tiny model only wait for each other, for seconds in each step of a run where the CPUs are busy.
    threads = 1 if tiny else min(8, len(os.sched_getaffinity(0)))
    paths = [ROOT / "src", ROOT / "bench", ROOT, site, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PATH": f"{site / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "HF_HUB_OFFLINE": "1",
    }


def _read_others(path: Path, step: str | None) -> tuple[Entry, ...]:
    """What the results have of the other steps, if one step is measured alone."""
    if step is None or not path.exists():
        return ()
    entries: Sequence[Entry] = json.loads(path.read_text(encoding="utf-8"))
    return tuple(entry for entry in entries if entry["step"] != step)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
