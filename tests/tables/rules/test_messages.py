"""Messages that the examples of rules cannot show: other numbers, other machines, several rules together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prime_train.core.findings import Finding, Severity
from prime_train.facts.facts import Facts, ModelFolder, SourceFiles
from prime_train.facts.machine import Ram, SaveDir
from prime_train.rules.explain import BASE, BASES
from prime_train.rules.judge import lint
from tests.unit.rules.examples import facts_of, validate

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


def test_a_fix_fits_the_kind_of_the_run() -> None:
    growing = BASES["rl"].replace("global_batch = 64", "global_batch = 64\nstart_batch = 8\nramp_steps = 20")
    assert found(growing, "BAT022").fix == "take it out"
    assert "overshoot" in found(BASE + "[optim]\nlr = 0.5\n", "OPT001").why


def test_batch_and_groups_have_one_fix() -> None:
    text = BASES["rl"].replace("micro_batch = 8\nglobal_batch = 64", "micro_batch = 5\nglobal_batch = 86")
    fixes = [finding.fix for finding in lint(text, "rl.toml").findings]
    assert fixes == ["batch.global_batch = 80"] * 2


def test_a_ragged_batch_that_no_step_can_take_is_an_error() -> None:
    ragged = BASE + "global_batch_tokens = 20000\n"
    assert found(ragged.replace("micro_batch = 8", "micro_batch = 3"), "BAT003").severity is Severity.WARNING
    assert found(ragged, "BAT003").severity is Severity.ERROR
