"""Runs are read into rows: a bounded part of each, and a damaged one is a row with its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.config import detect
from prime_train.config.differences import flatten
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, Event, LaunchAsked, Progress, Record, RunOpened, TrainerStarted
from prime_train.facts.facts import Facts
from prime_train.facts.facts import to_json as facts_to_json
from prime_train.facts.machine import Gpu, VisibleGpus
from prime_train.spec import from_json, to_json
from prime_train.spec.server import Server
from prime_train.supervise.services.wandb_links import find_wandb_link
from prime_train.views.compare import rows
from prime_train.views.compare.rows import RunRow, folder_of_runs, keys_of, read_row, read_rows
from tests.unit.views.compare.made import write_compared, write_lines
from tests.unit.views.written_runs import BEGAN_S, GONE, WHOLE_LIFE, write_events, write_metrics, write_run

NOW_S = BEGAN_S + 10_000
ENOUGH_BYTES = 1 << 20


def row_of(run_dir: RunDir, limit_bytes: int = ENOUGH_BYTES) -> RunRow:
    return read_row(run_dir.path, NOW_S, limit_bytes)


def test_runs_stand_in_the_order_of_their_starts_with_the_keys_that_changed(tmp_path: Path) -> None:
    write_compared(tmp_path, "z-first")
    write_compared(tmp_path, "other-kind", at_s=50, kind="sft", lr=3.0)
    write_compared(tmp_path, "a-second", at_s=100, lr=2e-3, seed=2)
    found = read_rows(tmp_path, NOW_S)
    assert [row.name for row in found] == ["z-first", "other-kind", "a-second"]
    assert [row.changed for row in found[:2]] == [None, None]
    assert [tuple(one) for one in found[2].changed or ()] == [("run.seed", 1, 2), ("optim.lr", 1e-3, 2e-3)]


def test_the_keys_of_the_document_are_those_of_the_run_spec(tmp_path: Path) -> None:
    """A key that is not set is there too, so that a condition may ask for it."""
    run_dir = write_compared(tmp_path, "one")
    run = replace(from_json(run_dir.resolved.read_text()), server=Server(model="org/model"))
    run_dir.resolved.write_text(to_json(run))
    found = keys_of(row_of(run_dir).config)
    given = {key: value for key, value in found.items() if value is not None}
    assert given == json.loads(json.dumps(flatten(run)))
    assert "batch.global_batch" in found


def test_a_row_has_state_and_results(tmp_path: Path) -> None:
    run_dir = write_compared(tmp_path, "one")
    write_metrics(run_dir, 100)
    row = row_of(run_dir)
    assert (row.state, row.step, row.max_steps, row.kind, row.metric) == ("finished", 100, 100, "pretrain", "loss")
    assert (row.last, row.held_out, row.reason) == (4.5, 4.625, "")
    assert row.best is not None
    assert row.best.is_whole
    losses = [json.loads(line)["loss"] for line in run_dir.metrics.read_text().splitlines()[:-1]]
    assert row.best.value == pytest.approx(min(losses))


def test_the_best_of_a_part_is_not_called_the_best_of_the_run(tmp_path: Path) -> None:
    run_dir = write_compared(tmp_path, "one")
    write_lines(run_dir, [{"step": step, "loss": float(step)} for step in range(1, 1001)])
    best = row_of(run_dir, limit_bytes=200).best
    assert best is not None
    assert (best.is_whole, best.value > 900) == (False, True)


def test_no_number_that_is_not_finite_is_the_best(tmp_path: Path) -> None:
    run_dir = write_compared(tmp_path, "one")
    losses = [float("nan"), float("-inf"), 2.5, None, -1e300, 1e999]
    write_lines(run_dir, [{"step": step, "loss": loss} for step, loss in enumerate(losses, start=1)])
    assert row_of(run_dir).best == (2.5, True)


def test_a_run_without_metrics_has_the_values_of_its_events(tmp_path: Path) -> None:
    best = row_of(write_compared(tmp_path, "one")).best
    assert best is not None
    assert best.value == 4.5
    assert not best.is_whole, "the events of the first attempt were not read"


def test_rewards_come_before_losses(tmp_path: Path) -> None:
    run_dir = write_compared(tmp_path, "one", kind="rl")
    write_lines(run_dir, [{"step": step, "loss": 1.0, "reward": step / 10} for step in (1, 9, 3)])
    row = row_of(run_dir)
    assert (row.metric, row.best) == ("reward", (0.9, True))


@pytest.mark.parametrize(
    ("resolved", "reason"),
    [("{", "resolved.json cannot be read"), ("[]", "no object"), ('{"run": 7}', ""), (None, "no resolved.json")],
)
def test_a_damaged_config_is_named_and_hides_nothing(tmp_path: Path, resolved: str | None, reason: str) -> None:
    run_dir = write_compared(tmp_path, "one")
    run_dir.resolved.unlink()
    if resolved is not None:
        run_dir.resolved.write_text(resolved)
    row = row_of(run_dir)
    assert (row.state, row.kind) == ("finished", None)
    assert reason in row.reason
    assert bool(row.reason) == bool(reason)


def test_links_in_a_run_are_not_followed(tmp_path: Path) -> None:
    run_dir, secret = write_compared(tmp_path, "one"), tmp_path / "secret"
    secret.write_text('{"run": {"kind": "sft"}, "loss": 0.1}')
    run_dir.resolved.unlink()
    for path in (run_dir.resolved, run_dir.metrics):
        path.symlink_to(secret)
    row = row_of(run_dir)
    assert (row.kind, row.best and row.best.value) == (None, 4.5)
    assert "symbolic link" in row.reason


def test_a_run_without_a_supervisor_has_not_started(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "resolved.json").write_text("{}")
    assert [row.state for row in read_rows(tmp_path, NOW_S)] == ["not started"]


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    run_dir = write_compared(tmp_path, "one")
    write_lines(run_dir, [{"step": 1, "loss": 2.5}])
    with open(run_dir.metrics, "a", encoding="utf-8") as file:
        file.write('{"step": 2, "loss": 1')
    assert row_of(run_dir).best == (2.5, True)


def test_a_folder_without_runs_and_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError) as caught:
            read_rows(folder, NOW_S)
        assert (caught.value.where, int(caught.value.exit_code)) == (str(folder), 2)


def test_a_folder_is_named_itself_or_the_one_above_it(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    assert folder_of_runs(tmp_path) == folder_of_runs(tmp_path / "runs") == tmp_path / "runs"


def test_a_run_of_prime_rl_has_the_names_of_its_keys(tmp_path: Path) -> None:
    config = {"run": {"kind": "rl"}, "prime_rl": {"trainer": ["Qwen/Qwen3-4B", 2048]}}
    assert keys_of(config)["prime_rl.trainer.ctx_tokens"] == 2048
    run_dir = write_run(tmp_path / "one", WHOLE_LIFE)
    run_dir.resolved.write_text(json.dumps(config))
    assert row_of(run_dir).model == "Qwen/Qwen3-4B"


def test_a_run_of_a_command_is_named_by_its_trainer(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "one", WHOLE_LIFE)
    run_dir.resolved.write_text(json.dumps({"run": {"kind": "command"}, "model": {}, "command": {"trainer": "trl"}}))
    assert (row_of(run_dir).kind, row_of(run_dir).model) == ("command", "trl")


# --- cost -------------------------------------------------------------------------------------------


def write_gpu_run(folder: Path, device: str, first_attempt: int = 1, returncode: int | None = 0) -> RunDir:
    run_dir = RunDir(folder / "gpu")
    events: tuple[tuple[float, Event], ...] = (
        (0.0, RunOpened("gpu", GONE, 10, "0")),
        (0.0, LaunchAsked(first_attempt, 0)),
        (60.0, TrainerStarted(first_attempt, GONE, 0, 8, device, "bf16", 10, 10, 0)),
        (100.0, Progress(first_attempt, 10, 2.0, 10.0, 10)),
        (7200.0, AttemptEnded(first_attempt, returncode, "finished", "", "", "", "", "", 0)),
    )
    write_events(run_dir, [Record(BEGAN_S + at_s, "supervisor", n, event) for n, (at_s, event) in enumerate(events)])
    return run_dir


def test_the_cost_is_that_of_all_gpu_hours_at_all_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    usd = row_of(write_gpu_run(tmp_path, "NVIDIA H100 80GB HBM3")).usd
    assert usd is not None
    assert 16 * 0.5 < usd.low <= usd.typical <= usd.high < 16 * 20, "8 GPUs for 2 hours"


@pytest.mark.parametrize(("device", "attempt"), [("AMD EPYC", 1), ("NVIDIA H100 80GB HBM3", 7)])
def test_a_cost_that_is_not_known_is_not_guessed(tmp_path: Path, device: str, attempt: int) -> None:
    """A processor has no price, and the attempts before the seventh are not in these events."""
    assert row_of(write_gpu_run(tmp_path, device, attempt)).usd is None


def test_an_attempt_with_an_unseen_end_makes_the_cost_unknown(tmp_path: Path) -> None:
    """A later supervisor finds it dead, perhaps days later, while its machine was long gone."""
    run_dir = write_gpu_run(tmp_path, "NVIDIA H100 80GB HBM3", returncode=None)
    assert row_of(run_dir).usd is None


def test_servers_beside_the_trainer_are_not_counted_as_free(tmp_path: Path) -> None:
    run_dir = write_gpu_run(tmp_path, "NVIDIA H100 80GB HBM3")
    run_dir.resolved.write_text('{"inference": {"tensor_parallel": 4}}')
    assert row_of(run_dir).usd is None


def write_other_run(run_dir: RunDir, text: str, devices: list[str], dialect: str = "run.toml") -> RunDir:
    """A run of two hours, of another program: its trainer reported no GPU, and facts.json has those that were seen."""
    run_dir.events.mkdir(parents=True)
    events: tuple[tuple[float, Event], ...] = (
        (0.0, RunOpened("other", GONE, 10, "0")),
        (0.0, LaunchAsked(1, 0)),
        (7200.0, AttemptEnded(1, 0, "finished", "", "", "", "", "", 0)),
    )
    write_events(run_dir, [Record(BEGAN_S + at_s, "supervisor", n, event) for n, (at_s, event) in enumerate(events)])
    run = detect.read(text, dialect).run
    assert run is not None
    run_dir.resolved.write_text(to_json(run))
    seen = VisibleGpus(tuple(Gpu(name, 80 * 2**30, (9, 0)) for name in devices))
    run_dir.facts.write_text(json.dumps(facts_to_json(Facts(gpus=seen))))
    return run_dir


H100 = "NVIDIA H100 80GB HBM3"
COMMAND = """
[run]
name = "other"
kind = "command"
max_steps = 10
[command]
argv = ["torchrun", "train.py"]
processes = {processes}
"""
RL = """
[prime_train]
prime_rl = "2026-01"
[model]
name = "x/y"
[orchestrator]
[[orchestrator.env]]
id = "a"
[trainer]
[inference]
"""
APART = "trainer_gpu_ids = [1]\ninference_gpu_ids = [0]\n"
SHARED = "trainer_gpu_ids = [0]\ninference_gpu_ids = [0]\n"


@pytest.mark.parametrize(
    ("text", "devices", "gpus"),
    [
        (COMMAND.format(processes=2), [H100] * 2, 2),
        (COMMAND.format(processes=1), [H100], 1),
        (COMMAND.format(processes=1), [H100] * 8, None),  # it may use one, or all
        (COMMAND.format(processes=2), [], None),
        (COMMAND.format(processes=2), [H100, "Tesla T4"], None),
        (APART + RL, [H100] * 8, 2),
        (SHARED + RL, [H100] * 8, 1),
    ],
)
def test_the_gpus_of_another_program_are_those_seen_before_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, devices: list[str], gpus: int | None
) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    usd = row_of(write_other_run(RunDir(tmp_path / "other"), text, devices)).usd
    one = row_of(write_gpu_run(tmp_path / "bundled", H100)).usd
    assert one is not None
    assert (usd and round(usd.typical / one.typical * 8, 3)) == gpus, "the other run has eight of them for two hours"


# --- W&B --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "log", "link"),
    [
        ({"project": "nano", "entity": "me"}, "", "https://wandb.ai/me/nano/runs/k3x9"),
        (
            {"project": "nano"},
            "View run at https://wandb.ai/you/nano/runs/k3x9\n",
            "https://wandb.ai/you/nano/runs/k3x9",
        ),
        ({"project": "nano"}, "", None),
        ({"project": "nano", "entity": "me", "mode": "offline"}, "", None),
        ({}, "View run at https://wandb.ai/you/nano/runs/k3x9\n", None),
        ("nano", "", None),
    ],
)
def test_the_link_is_the_printed_one_else_made_of_what_is_known(
    tmp_path: Path, table: object, log: str, link: str | None
) -> None:
    run_dir = write_run(tmp_path / "one", WHOLE_LIFE)
    run_dir.resolved.write_text(json.dumps({"prime_train": {"wandb": table}}))
    run_dir.wandb.mkdir()
    (run_dir.wandb / "mirror.json").write_text('{"run_id": "k3x9", "last_step": 1, "read": {}}')
    (run_dir.wandb / "mirror.log").write_text(log)
    assert row_of(run_dir).wandb == link


_STARTED = "\x1b[34m\x1b[1mwandb\x1b[0m: \U0001f680 View run at \x1b[34m\x1b[4mhttps://wandb.ai/me/p/runs/a1\x1b[0m\n"
_ENDED = "wandb: \U0001f680 View run at night at: https://wandb.ai/me/p/runs/a1?apiKey=k3y\n"
_OTHER = "wandb: \U0001f680 View run at https://wandb.ai/me/p/runs/b2\n"
_PAGE = "https://wandb.ai/me/p/runs/a1"


@pytest.mark.parametrize(
    ("logs", "link"),
    [
        ({"001/trainer": _STARTED}, _PAGE),
        ({"001/trainer": _STARTED, "002/trainer": "Traceback\n"}, _PAGE),
        ({"001/trainer": _OTHER, "002/trainer": _ENDED}, _PAGE),
        ({"001/trainer": "words\n" * 100_000 + _ENDED}, _PAGE),
        ({"001/trainer": _STARTED, "001/server": _ENDED}, _PAGE),
        ({"001/trainer": _STARTED + _OTHER}, None),  # a sweep in one process
        ({"001/trainer": "see https://wandb.ai/they/q/runs/z9\nView run at https://wandb.ai/they/q/runs/z9\n"}, None),
        ({}, None),
    ],
)
def test_the_page_that_the_trainer_printed_is_the_link(tmp_path: Path, logs: dict[str, str], link: str | None) -> None:
    run_dir = write_run(tmp_path / "one", WHOLE_LIFE)
    run_dir.resolved.write_text("{}")
    for name, text in logs.items():
        path = run_dir.path / "attempts" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert row_of(run_dir).wandb == link
    assert find_wandb_link(run_dir) == link


def test_a_folder_whose_runs_are_all_unreadable_is_an_error(tmp_path: Path) -> None:
    unread = RunRow(tmp_path / "one", "one", rows.UNREADABLE, "permission denied")
    error = rows.unreadable_error([unread])
    assert error is not None
    assert (error.why, int(error.exit_code)) == ("permission denied", 4)
    assert rows.unreadable_error([unread, RunRow(tmp_path / "two", "two", "finished")]) is None
