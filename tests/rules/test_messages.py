"""Messages that the examples of rules cannot show: other numbers, other machines, several rules together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prime_train.core.findings import Finding
from prime_train.facts.facts import Facts, ModelFolder, SourceFiles
from prime_train.facts.machine import Ram, SaveDir
from prime_train.rules.explain import BASE, BASES
from prime_train.rules.judge import lint

from .examples import facts_of, validate

SMALL_RAM = Ram(total_bytes=2**20, available_bytes=2**20)


def found(text: str, code: str, **facts: object) -> Finding:
    run = lint(text, "run.toml").run
    assert run is not None
    machine = replace(facts_of({}, run), **facts)  # type: ignore[arg-type]
    return next(item for item in validate(text, "run.toml", machine).findings if item.code == code)


def codes(text: str, **facts: object) -> set[str]:
    run = lint(text, "run.toml").run
    assert run is not None
    machine: Facts = replace(facts_of({}, run), **facts)  # type: ignore[arg-type]
    return {item.code for item in validate(text, "run.toml", machine).findings}


def test_processes_are_counted_in_words() -> None:
    assert "for 1 process, and" in found(BASE, "HST002", ram=SMALL_RAM).what
    assert "for 4 processes, and" in found(BASE + "[parallel]\nprocesses = 4\n", "HST002", ram=SMALL_RAM).what


def test_a_folder_that_takes_no_file_has_a_fix_elsewhere() -> None:
    nowhere = SaveDir(Path("/proc/runs"), Path("/proc"), 0, 0, refusal="No such file or directory")
    native = found(BASE, "DSK002", save_dir=nowhere)
    assert native.what == "/proc takes no file: No such file or directory"
    assert native.fix == 'run.dir = "runs", below a folder of your own'
    rl = found(BASES["prime-rl 2026-08"], "DSK002", save_dir=nowhere)
    assert (rl.key, rl.fix) == ("output_dir", 'output_dir = "outputs", below a folder of your own')


def test_a_missing_model_folder_is_reported_once() -> None:
    text = BASE + '[model]\npath = "models/gone"\nlayers = 12\n'
    gone = ModelFolder(Path("models/gone"), "there is no such folder")
    assert codes(text, model_folder=gone) == {"MOD002"}
    assert {item.code for item in lint(text, "run.toml").findings} == {"MOD004", "TOK003"}


def test_a_source_that_may_not_be_read_has_another_fix_than_a_missing_one() -> None:
    denied = SourceFiles(0, "corpus/*.txt", 1, 0, "corpus/a.txt may not be read", is_denied=True)
    assert found(BASE, "DAT003", source_files=(denied,)).fix == "chmod -R u+rX corpus/*.txt"
    missing = denied._replace(problem="there is no such file or folder", is_denied=False)
    assert found(BASE, "DAT003", source_files=(missing,)).fix.startswith("correct the path")
