"""`python -m tests.fuzz.kills`: kills trainers and supervisors at random instants, and judges what the run comes to.

A case is a run of 60 steps with a checkpoint every 5 and up to three kills. The seed decides: every third run packs
superseded checkpoints, and every third one has two ranks. A run of two ranks needs torchrun, so it always trains with
the real loop; the others do with --torch. `tests.fuzz.bucket_kills` does so with backups.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from prime_train.checkpoints import in_use, layout, removal
from prime_train.checkpoints.packing import packing_plan
from prime_train.events import LaunchAsked, read
from tests.fuzz.case import TEMPORARY
from tests.fuzz.stage import Stage, kill_tree, reap
from tests.fuzz.templates import COMMAND, Reference, hashes, losses, read_reference

STEPS, INTERVAL_STEPS = 60, 5
VARIANTS = ("plain", "packing", "two ranks")
_MORE = {"packing": "\n[prime_train.backup]\ncompress = true\n"}
_LIMIT_S = 300.0
_POLL_S = 0.005
_STEP_S = {"FUZZ_STEP_S": "0.02"}


@dataclass(frozen=True, slots=True)
class Kill:
    """After `wait_s` of its supervisor's life, or of the trainer's for a kill of the trainer alone."""

    wait_s: float
    target: str  # trainer, supervisor, both


@dataclass(frozen=True, slots=True)
class Undisturbed:
    reference: Reference
    wall_s: float


def write(stage: Stage, variant: str, keep_last: int) -> None:
    """An empty case with the config of a variant."""
    stage.write_config(STEPS)
    config = stage.case / "run.toml"
    text = config.read_text(encoding="utf-8")
    checkpoint = f"interval_steps = {INTERVAL_STEPS}\nkeep_last = {keep_last}\n"
    config.write_text(text.replace("interval_steps = 4\n", checkpoint) + _MORE.get(variant, ""), encoding="utf-8")


def undisturbed(stage: Stage, ranks: str) -> Undisturbed:
    """The run of `plain` or `two ranks` without a kill, made once."""
    write(stage, ranks, keep_last=2)
    began_s = time.monotonic()
    ended = stage.run(*COMMAND, limit_s=4 * _LIMIT_S, **_STEP_S)
    assert ended.code == 0, ended.text
    wall_s = time.monotonic() - began_s
    stage.case.rename(stage.templates / ranks)
    return Undisturbed(read_reference(stage, ranks), wall_s)


def play(
    stage: Stage, expected: Undisturbed, variant: str, chance: random.Random, limit_s: float = _LIMIT_S
) -> tuple[str, list[str]]:
    """The kills that were done, and what was wrong."""
    write(stage, variant, chance.choice((2, 100)))
    targets = chance.choices(("trainer", "supervisor", "both"), k=chance.randint(1, 3))
    kills = [Kill(chance.uniform(0.0, expected.wall_s), target) for target in targets]
    complete: dict[int, set[int]] = {}  # by number of the newest attempt
    done = []
    pid = stage.start(*COMMAND, **_STEP_S)
    for kill in kills:
        code = await_end(pid, kill.wait_s)
        if code is not None:
            break
        saved = {found.step for found in layout.scan(stage.run_dir.checkpoints) if found.complete}
        complete[newest_attempt(stage)] = saved
        trainers = find_trainers(pid)
        if kill.target != "supervisor" and trainers:
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(trainers).kill()
        done.append(f"{kill.target} at {kill.wait_s:.2f} s")
        if kill.target != "trainer":
            kill_alone(pid)
            pid = stage.start(*COMMAND, **_STEP_S)
    code = await_end(pid, limit_s)
    problems = list(judge_end(stage, expected.reference, complete, code))
    return ", ".join(done) or "ended before the first kill", problems


def await_end(pid: int, limit_s: float) -> int | None:
    """The exit code of a child; None if it lives after `limit_s`. A child that has ended stays a zombie."""
    give_up_s = time.monotonic() + limit_s
    while time.monotonic() < give_up_s:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        time.sleep(_POLL_S)
    return None


def kill_alone(pid: int) -> None:
    """Kill the supervisor alone: its trainer has to end by itself."""
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def find_trainers(pid: int) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "prime_train.trainer" in process.cmdline():
                    found.append(process)
    return found


def newest_attempt(stage: Stage) -> int:
    asked = (record.event for record in read(stage.run_dir.events))
    return max((event.attempt for event in asked if isinstance(event, LaunchAsked)), default=0)


def judge_end(stage: Stage, reference: Reference, complete: dict[int, set[int]], code: int | None) -> Iterator[str]:
    said = (stage.root / "said.txt").read_text(encoding="utf-8", errors="replace")
    if code != 0:
        yield f"exit code {code}: {' | '.join(said.splitlines()[-6:])[:500]}"
        return
    run_dir = stage.run_dir
    if losses(run_dir) != reference.losses:
        yield "metrics.jsonl is not bit-equal"
    if hashes(run_dir.checkpoint(reference.last_step), torch=stage.torch) != reference.files:
        yield "the last checkpoint is not bit-equal"
    asked = {e.attempt: e.resume_step for e in (r.event for r in read(run_dir.events)) if isinstance(e, LaunchAsked)}
    for attempt, steps in complete.items():
        later = asked.get(attempt + 1)
        if steps and later is not None and later < max(steps):
            yield f"attempt {attempt + 1} began at step {later}, and step {max(steps)} was complete"
    yield from _list_leftovers(stage)


def _list_leftovers(stage: Stage) -> Iterator[str]:
    for line in reap(set()):
        yield f"left running: {line}"
    for directory, folders, names in os.walk(stage.run_dir.path):
        for name in (*folders, *names):
            if TEMPORARY.search(name) or name.startswith((removal.ASIDE, in_use.MARK)):
                yield f"left behind: {Path(directory, name).relative_to(stage.run_dir.path)}"
    for found in layout.scan(stage.run_dir.checkpoints):
        if not found.complete:
            yield f"left behind: step_{found.step}: {found.problem}"
        elif packing_plan.has_leftovers(found.path):
            yield f"left behind: pieces of packing in step_{found.step}"


def run(stage: Stage, seeds: range, variants: tuple[str, ...] = VARIANTS, limit_s: float = _LIMIT_S) -> int:
    """Play a case for each seed, and print the failures and a summary. Returns the number of failed cases."""
    stage.prepare()
    played: Counter[str] = Counter()
    failed = 0
    began_s = time.monotonic()
    expected: dict[str, Undisturbed] = {}
    for seed in seeds:
        variant = variants[seed % len(variants)]
        ranks = "two ranks" if variant == "two ranks" else "plain"
        root, count = stage.root / ranks.replace(" ", "-"), 2 if ranks == "two ranks" else 1
        chosen = replace(stage, root=root, torch=stage.torch or count > 1, ranks=count)
        if ranks not in expected:
            chosen.prepare()
            expected[ranks] = undisturbed(chosen, ranks)
        done, problems = play(chosen, expected[ranks], variant, random.Random(seed), limit_s)
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error, OSError):
                kill_tree(child.pid)
        played[f"{variant}, {'torch' if chosen.torch else 'arithmetic'}"] += 1
        failed += bool(problems)
        for problem in problems:
            show(f"{seed} [{variant}] {done}\n    {problem}")
        if played.total() % REPORT_EVERY == 0:
            show(f"{played.total()} of {len(seeds)} cases, {failed} failed")
    summary = {"cases": len(seeds), "seed": seeds.start, "failed_cases": failed, "played": dict(played)}
    show(json.dumps(summary | {"wall_s": round(time.monotonic() - began_s, 1)}))
    return failed


def show(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


REPORT_EVERY = 50  # cases


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.kills", description="Kill runs at random instants.")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next case has the next seed")
    parser.add_argument("--cases", type=int, default=6)
    parser.add_argument("--limit-s", type=float, default=_LIMIT_S, help="of a run after its last kill")
    parser.add_argument("--torch", action="store_true", help="train with the real loop")
    parser.add_argument("--variant", choices=VARIANTS, help="only this one")
    given = parser.parse_args(arguments)
    variants = (given.variant,) if given.variant else VARIANTS
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        stage = Stage(Path(temporary).resolve(), given.torch)
        return 1 if run(stage, range(given.seed, given.seed + given.cases), variants, given.limit_s) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
