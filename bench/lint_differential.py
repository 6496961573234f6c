"""Compares lint with pydantic on mutants of real prime-rl files: what each of the two refuses.

Each example becomes mutants: a value of another type or at a bound, any legal key with such a value, a misspelt or
unknown key, a key or table less. With --classes the judge is prime-rl's own config classes, and a mutant may also be a
case of a validator; docs/prime_rl.md describes the folder. Without it the judge is pydantic with models made from the
published field rows (fields-<generation>.json in --fields): it has every key, type, bound and union, but no validator.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import record
from class_judge import ClassJudge, value_at
from fields_as_models import FieldJudge

from prime_train.config.detect import read
from prime_train.config.parsed_config import GENERATION, PASSED_THROUGH, Fault
from prime_train.config.prime_rl.schema import load
from prime_train.config.prime_rl.validate import walk
from prime_train.config.prime_rl.validators import judge as judge_validators
from prime_train.config.prime_rl.validators import load_validators
from prime_train.config.schema import Number, choices, shapes_of

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tests" / "config" / "prime_rl" / "validator_cases"
POOL: tuple[Any, ...] = (
    *("100.0", "1e2", "0.5", "true", "None", "", "many", "a/b"),
    *(0, 1, -1, 7, 10**6, 0.0, 0.5, 2.0, -0.5, 1.5, True, False),
    *([], ["a"], [1], {}, {"a": 1}),
)
_SHOWN = 40  # disagreements that are written for each kind


class Judge(Protocol):
    def refusals(self, root: str, values: dict[str, Any]) -> list[str]:
        """The messages with which the values are refused."""
        ...


# Bounds that prime-rl does not have, because vLLM or the first step ends a run with less: docs/prime_rl_tables.py.
STRICTER = (
    *("max_steps", "seq_len", "num_train_gpus", "num_train_nodes", "gpus_per_node", "max_completion_tokens"),
    *("max_model_len", "tensor_parallel_size", "tp", "batch_size", "micro_batch_size", "max_lora_rank"),
    *("max_loras", "max_tokens", "rollouts_per_example", "interval", "num_infer_gpus", "num_infer_nodes"),
)


class Mutant(NamedTuple):
    kind: str
    change: str
    values: dict[str, Any]


class Verdict(NamedTuple):
    kind: str
    change: str
    file: str
    theirs: list[str]
    ours: list[str]
    because: str  # why ours are right where the classes accept: "stricter", "dropped", "later", or ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", type=Path, help="folder with <generation>/**/*.toml")
    parser.add_argument("--fields", type=Path, help="folder with fields-<generation>.json")
    parser.add_argument("--classes", type=Path, help="folder with <generation>/prime_rl")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter for --classes; {generation} stands for one"
    )
    parser.add_argument("--count", type=int, default=3000, help="mutants of each generation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--differences", type=Path, help="write the disagreements here, one JSON line each")
    options = parser.parse_args()
    if options.fields is None and options.classes is None:
        parser.error("give --fields or --classes")
    rows: list[dict[str, Any]] = []
    apart: list[Verdict] = []
    for folder in sorted(options.examples.glob("2026-*")):
        generation = folder.name
        if options.classes is not None:
            judge: Judge = ClassJudge(options.python.format(generation=generation), options.classes / generation)
        else:
            judge = FieldJudge(json.loads((options.fields / f"fields-{generation}.json").read_text(encoding="utf-8")))
        verdicts = list(compare(judge, generation, folder, options.count, options.seed))
        listed = (options.fields or options.examples) / f"validators-{generation}.txt"
        lines = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else None
        rows.append(_row(generation, "classes" if options.classes else "field rows", verdicts, lines))
        apart += [one for one in verdicts if bool(one.theirs) != bool(one.ours)]
        if isinstance(judge, ClassJudge):
            judge.close()
    if options.differences is not None:
        lines = [json.dumps(one._asdict()) + "\n" for one in apart]
        options.differences.write_text("".join(lines), encoding="utf-8")
    record.write("lint_differential", rows)


def _coverage(generation: str, lines: list[str]) -> dict[str, Any]:
    """How many validators of the published list are judged. A line of it is "FILE:LINE NAME: MESSAGE"."""
    data = load_validators(generation)
    listed = {line.split(" ")[0] for line in lines if re.match(r"\S+\.py:\d+ ", line)}
    judged = listed & {part.split(" ")[0] for entry in data.validators for part in entry["source"].split("; ")}
    if any("fills" in shared for shared in data.shared.values()):  # a value that one side contradicts
        judged |= {line.split(" ")[0] for line in lines if " propagate_shared_fields:" in line}
    beyond = listed & {part.split(" ")[0] for entry in data.not_judged for part in entry["source"].split("; ")} - judged
    return {
        "validators_listed": len(listed),
        "validators_that_a_file_cannot_decide": len(beyond),
        "validators_judged": len(judged),
        "validators_judged_percent": _percent(len(judged), len(listed) - len(beyond)),
    }


def _row(generation: str, judge: str, verdicts: list[Verdict], lines: list[str] | None) -> dict[str, Any]:
    refused = [one for one in verdicts if one.theirs]
    accepted = [one for one in verdicts if not one.theirs]
    by_kind = Counter(one.kind for one in refused)
    found = Counter(one.kind for one in refused if one.ours)
    because = Counter(one.because for one in accepted)
    row = {
        "what": "lint beside pydantic on mutants of prime-rl files",
        "generation": generation,
        "judge": judge,
        "n": len(verdicts),
        "refused": len(refused),
        "recall_percent": _percent(sum(bool(one.ours) for one in refused), len(refused)),
        "recall_by_kind_percent": {kind: _percent(found[kind], number) for kind, number in sorted(by_kind.items())},
        "accepted": len(accepted),
        "false_percent": _percent(sum(bool(one.ours) and not one.because for one in accepted), len(accepted)),
        **{f"{why}_percent": _percent(because[why], len(accepted)) for why in ("stricter", "dropped", "later")},
        **({} if lines is None else _coverage(generation, lines)),
        "machine": record.machine(),
        "commit": record.commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    print(json.dumps(row), flush=True)
    return row


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


def compare(judge: Judge, generation: str, examples: Path, count: int, seed: int) -> Iterator[Verdict]:
    """The verdicts of both on `count` mutants of the examples that both accept."""
    chance = random.Random(f"{seed} {generation}")
    with_validators = isinstance(judge, ClassJudge)
    bases = list(_bases(judge, generation, examples, with_validators))
    for number in range(count):
        file, root, values = bases[number % len(bases)]
        mutant = _mutant(generation, root, values, chance, with_validators)
        theirs = judge.refusals(root, deepcopy(mutant.values))
        faults = _faults(generation, root, mutant.values, with_validators)
        ours = [f"{one.code} {one.what}" for one in faults]
        because = ""
        if faults and not theirs:
            lasts = {one.partition(" = ")[0].partition(" must")[0].rpartition(".")[2].split()[-1] for one in ours}
            confirmed = judge.confirms(root, mutant.values, values, faults) if isinstance(judge, ClassJudge) else ""
            because = "stricter" if lasts.issubset(STRICTER) else confirmed
        yield Verdict(mutant.kind, mutant.change, file, theirs, ours, because)


def _bases(
    judge: Judge, generation: str, examples: Path, validators: bool
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path in sorted(examples.rglob("*.toml")):
        text = path.read_text(encoding="utf-8")
        reading = read(text, str(path), generation)
        values = tomllib.loads(text)
        accepted = not reading.partial and not judge.refusals(reading.root, deepcopy(values))
        if accepted and not _faults(generation, reading.root, values, validators):
            yield str(path.relative_to(examples)), reading.root, values


def _faults(generation: str, root: str, values: dict[str, Any], validators: bool) -> list[Fault]:
    state = walk(load(generation), root, values, whole=True)
    faults = [*state.faults, *(judge_validators(state) if validators else ())]
    warned = (PASSED_THROUGH, GENERATION)
    return [one for one in faults if one.severity is None and one.code not in warned]


def _mutant(generation: str, root: str, values: dict[str, Any], chance: random.Random, validators: bool) -> Mutant:
    made = deepcopy(values)
    kinds = ["value", "value", "any key", "any key", "any key", "misspelt", "unknown", "removed", "swapped"]
    kind = chance.choice([*kinds, "validator", "validator"] if validators else kinds)
    paths = [path for path in _paths(made) if not _is_plugin(path)]
    if kind == "validator":
        cases = json.loads((CASES / f"{generation}.json").read_text(encoding="utf-8"))
        name, case = chance.choice([(name, case) for name, case in cases.items() if case["root"] == root] or [("", {})])
        side = chance.choice(["fires", "twin"])
        for key, value in case.get(side, {}).items():
            _put(made, tuple(key.split(".")), deepcopy(value))
        return Mutant(kind, f"{name} {side}", made)
    if kind == "any key":
        path, item = chance.choice(list(load(generation).paths(root)))
        default = list(item.default) if isinstance(item.default, tuple) else item.default
        numbers = (shape for shape in shapes_of(item.shape) if isinstance(shape, Number))
        near = [*choices(item), *(bound.limit for shape in numbers for bound in shape.bounds), default]
        legal = [each for each in near if each not in (None, [])]
        value = deepcopy(chance.choice(legal if legal and chance.random() < 0.5 else POOL))
        if not _is_plugin(path):
            _put(made, path, value)
        return Mutant(kind, f"{path} = {value!r}", made)
    path = chance.choice(paths)
    around, last = value_at(made, path[:-1]), path[-1]
    match kind:
        case "value":
            around[last] = deepcopy(chance.choice(POOL))
        case "misspelt" if isinstance(last, str) and len(last) > 3:
            at = chance.randrange(1, len(last))
            around[last[:at] + last[at + 1 :]] = around.pop(last)
        case "removed":
            del around[last]
        case "swapped":
            around[last] = 3 if isinstance(around[last], dict) else {"key": around[last]}
        case _:
            _put(made, (*path[:-1], "no_such_key"), 1)
    return Mutant(kind, f"{path} -> {around.get(last) if isinstance(around, dict) else ''!r}", made)


def _paths(values: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = values.items() if isinstance(values, dict) else ()
    found = [(*at, key) for key, _ in entries]
    for key, value in entries:
        found += _paths(value, (*at, key))
        if isinstance(value, list):
            found += [path for i, item in enumerate(value) for path in _paths(item, (*at, key, i))]
    return found


def _is_plugin(path: tuple[Any, ...]) -> bool:
    """Whether a plug-in owns the key: prime-rl resolves it when it validates, and no table has it."""
    names = [part for part in path if isinstance(part, str)]
    return any(a == "env" and b in names[i + 1 :] for i, a in enumerate(names) for b in ("taskset", "agent", "harness"))


def _put(values: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    node: Any = values
    for part in path[:-1]:
        below = node.setdefault(part, {}) if isinstance(node, dict) else node[part]
        if not isinstance(below, dict | list):
            node[part] = below = {}
        node = below
    if isinstance(node, dict) or isinstance(path[-1], int):
        node[path[-1]] = value


if __name__ == "__main__":
    main()
