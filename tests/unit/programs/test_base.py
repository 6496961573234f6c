from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_train.checkpoints.layout import newest_complete, write_manifest
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.plans import ChangePlan, read_plan, write_plan
from prime_train.core.rundir import RunDir
from prime_train.events import (
    AttemptEnded,
    BatchShrunk,
    EventLog,
    LaunchAsked,
    Progress,
    RunClosed,
    RunOpened,
    SettingsApplied,
)
from prime_train.programs.bundled import PROGRAM
from prime_train.spec import (
    Batch,
    Benchmark,
    Data,
    Eval,
    EvalSet,
    Model,
    Optim,
    Parallel,
    Run,
    RunSpec,
    Source,
    Tokenizer,
    from_json,
)
from prime_train.spec.answers import global_batch, rl_settings
from prime_train.spec.rl import Adapter, Rl, TaskSource
from prime_train.spec.server import Server
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.run_directory import Resume, apply_micro_batch, find_last_step

TEXT = "[run]\nname = 'a'\n"


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "runs" / "a")


def spec(max_steps: int = 40) -> RunSpec:
    return RunSpec(run=Run(name="a", max_steps=max_steps), data=Data(sources=(Source(kind="python-stdlib"),)))


def save(run_dir: RunDir, step: int, *, complete: bool = True) -> None:
    folder = run_dir.checkpoint(step)
    folder.mkdir(parents=True)
    (folder / "state.bin").write_bytes(bytes(100))
    (folder / ".metadata").write_bytes(b"")
    if complete:
        write_manifest(folder, step)


def finish(run_dir: RunDir, step: int) -> None:
    supervisor, trainer = EventLog(run_dir.events, "supervisor"), EventLog(run_dir.events, "trainer-001-rank0")
    supervisor.append(RunOpened("a", 1, step, "0.1"))
    supervisor.append(LaunchAsked(1, 0))
    trainer.append(Progress(1, step, 1.0, 1.0, 1))
    supervisor.append(AttemptEnded(1, 0, "finished", "", "", "", "", "", step))
    supervisor.append(RunClosed("finished", 0, ""))


def refused(run: RunSpec, run_dir: RunDir, resume: Resume = "auto") -> UserError:
    """The error, after which the directory is as before. A dry run is refused with the same error."""
    before = {path: path.read_bytes() for path in run_dir.path.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as raised:
        PROGRAM.open_run(TEXT + "# changed\n", run, run_dir, resume)
    with pytest.raises(UserError) as planned:
        PROGRAM.open_run(None, run, run_dir, resume)
    assert str(planned.value) == str(raised.value)
    assert {path: path.read_bytes() for path in run_dir.path.rglob("*") if path.is_file()} == before
    assert all((raised.value.what, raised.value.where, raised.value.why, raised.value.fix))
    return raised.value


def test_a_fresh_run_gets_its_config_and_its_resolved_form(run_dir: RunDir) -> None:
    opened = PROGRAM.open_run(TEXT, spec(), run_dir)
    assert (opened.fresh, opened.finished, opened.notes) == (True, False, ())
    assert run_dir.config.read_text() == TEXT
    assert from_json(run_dir.resolved.read_text()) == opened.run


def test_local_paths_become_absolute_and_names_on_the_hub_stay(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "texts").mkdir()
    sources = (
        Source(kind="files", path="not/there/*.txt"),
        Source(kind="hf-dataset", path="roneneldan/TinyStories"),
        Source(kind="hf-dataset", path="texts"),
        Source(kind="python-stdlib"),
    )
    run = replace(spec(), data=Data(sources=sources), model=Model(path="model"), tokenizer=Tokenizer(path="org/name"))
    found = PROGRAM.open_run(TEXT, run, run_dir).run
    assert [source.path for source in found.data.sources] == [
        str(tmp_path / "not/there/*.txt"),
        "roneneldan/TinyStories",
        str(tmp_path / "texts"),
        None,
    ]
    assert (found.model.path, found.tokenizer.path) == (str(tmp_path / "model"), "org/name")
    assert found.run.dir == str(tmp_path / "runs")


def test_the_paths_of_evaluations_become_absolute_and_may_change(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "questions.jsonl").write_text("")
    asked = Eval(
        sets=(EvalSet(name="books", sources=(Source(kind="files", path="books/*.txt"),)),),
        benchmarks=(Benchmark(kind="hellaswag", path="questions.jsonl"), Benchmark(kind="lm-eval", task="arc_easy")),
    )
    found = PROGRAM.open_run(TEXT, replace(spec(), eval=asked), run_dir).run
    assert found.eval.sets[0].sources[0].path == str(tmp_path / "books/*.txt")
    assert [one.path for one in found.eval.benchmarks] == [str(tmp_path / "questions.jsonl"), None]
    assert PROGRAM.open_run(TEXT, spec(), run_dir).run.eval == Eval()


def test_the_same_config_goes_on_and_writes_nothing_again(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(), run_dir)
    before = sorted(os.listdir(run_dir.path))
    assert PROGRAM.open_run(TEXT, spec(), run_dir).notes == ()
    assert sorted(os.listdir(run_dir.path)) == before


def test_what_may_change_is_taken_and_the_earlier_config_kept(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(), run_dir)
    later = replace(spec(80), optim=Optim(lr=0.1), parallel=Parallel(processes=2), batch=Batch(global_batch=8))
    opened = PROGRAM.open_run("# second\n", later, run_dir)
    assert opened.run.optim.lr == 0.1
    assert "to step 80" in opened.notes[0]
    PROGRAM.open_run("# third\n", later, run_dir)
    assert (run_dir.path / "config.1.toml").read_text() == TEXT
    assert (run_dir.path / "config.2.toml").read_text() == "# second\n"
    assert run_dir.config.read_text() == "# third\n"
    assert from_json(run_dir.resolved.read_text()).run.max_steps == 80


def test_every_change_that_a_checkpoint_cannot_follow_is_named_with_both_values(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(), run_dir)
    save(run_dir, 20)
    changed = replace(
        spec(),
        run=replace(spec().run, seed=7),
        model=Model(layers=9),
        data=replace(spec().data, ctx_tokens=64),
        batch=Batch(global_batch=12),
        tokenizer=Tokenizer(vocab_size=300),
    )
    error = refused(changed, run_dir)
    for part in (
        "run.seed is 7, the run began with 1234",
        "model.layers is 9, the run began with 4",
        "data.ctx_tokens is 64, the run began with 512",
        "batch.global_batch is 12, the run began with 8",
        "tokenizer.vocab_size is 300, the run began with 4096",
    ):
        assert part in error.what
    assert error.exit_code == ExitCode.USAGE


def test_a_changed_source_is_reported_by_its_keys(run_dir: RunDir) -> None:
    def reads(field: str) -> RunSpec:
        return replace(spec(), data=Data(sources=(Source(kind="files", path="/text", text_field=field),)))

    PROGRAM.open_run(TEXT, reads("text"), run_dir)
    save(run_dir, 20)
    error = refused(reads("body"), run_dir)
    begun = "kind 'files', path '/text'"
    assert error.what == f"data.sources is {begun}, text_field 'body', the run began with {begun}"


def rewarded(
    *, tasks: tuple[TaskSource, ...] = (TaskSource(kind="reverse-text"),), lora: Adapter | None = None, **rl: Any
) -> RunSpec:
    run = Run(name="a", max_steps=40, kind="rl")
    return RunSpec(run=run, data=Data(sources=()), model=Model(lora=lora), tasks=tasks, rl=Rl(**rl))


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (rewarded(group_size=4), "rl.group_size is 4, the run began with 8"),
        (rewarded(warmup_steps=9), "rl.warmup_steps is 9, the run began with 0"),
        (rewarded(kl_coef=0.1), "rl.kl_coef is above 0, the run began with 0"),
        (rewarded(lora=Adapter(rank=4)), "model.lora is rank 4, the run began with unset"),
        (
            rewarded(tasks=(TaskSource(kind="reverse-text", arguments={"max_letters": 9}),)),
            "tasks is kind 'reverse-text', arguments {'max_letters': 9}, the run began with kind 'reverse-text'",
        ),
    ],
)
def test_a_run_of_rewards_keeps_what_its_checkpoints_hold(run_dir: RunDir, changed: RunSpec, what: str) -> None:
    PROGRAM.open_run(TEXT, rewarded(), run_dir)
    save(run_dir, 20)
    assert refused(changed, run_dir).what == what


def test_sampling_loss_and_limits_of_a_run_of_rewards_may_change(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, rewarded(), run_dir)
    save(run_dir, 20)
    slower = (TaskSource(kind="reverse-text", max_turns=2, limit_s=5.0),)
    later = rewarded(tasks=slower, answer_tokens=9, temperature=0.7, clip_high=0.3, concurrency=4, max_behind_steps=0)
    assert rl_settings(PROGRAM.open_run(TEXT, later, run_dir).run).answer_tokens == 9


def test_the_paths_of_tasks_become_absolute(run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums").mkdir()
    (tmp_path / "python").touch()
    given = (TaskSource(kind="verifiers", id="./sums", python="./python"), TaskSource(kind="verifiers", id="gsm8k"))
    opened = PROGRAM.open_run(TEXT, rewarded(tasks=given), run_dir).run
    assert [(task.id, task.python) for task in opened.tasks] == [
        (str(tmp_path / "sums"), str(tmp_path / "python")),
        ("gsm8k", None),
    ]


def test_an_engine_without_a_model_keeps_the_name_of_the_policy(run_dir: RunDir) -> None:
    opened = PROGRAM.open_run(TEXT, replace(rewarded(), server=Server(kv_cache_gib=1.0)), run_dir).run
    assert opened.server is not None
    assert (opened.server.model, opened.server.requests_name) == ("", "policy")


def test_without_a_checkpoint_everything_may_change(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(), run_dir)
    PROGRAM.open_run(
        "# corrected\n", replace(spec(), model=Model(layers=9), tokenizer=Tokenizer(vocab_size=300)), run_dir
    )
    assert from_json(run_dir.resolved.read_text()).model.layers == 9
    assert run_dir.config.read_text() == "# corrected\n"
    save(run_dir, 20)
    assert "model.layers is 4, the run began with 9" in refused(spec(), run_dir).what


def test_the_same_global_batch_reported_in_another_way_is_no_change(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(), run_dir)
    save(run_dir, 20)
    PROGRAM.open_run(TEXT, replace(spec(), batch=Batch(global_batch_tokens=8 * 512)), run_dir)


@pytest.mark.parametrize("asked", [Batch(micro_batch=8), Batch(micro_batch=8, global_batch_tokens=8 * 512)])
def test_a_run_whose_micro_batch_was_halved_keeps_its_global_batch(run_dir: RunDir, asked: Batch) -> None:
    asked_for = replace(spec(), batch=asked)
    run = PROGRAM.open_run(TEXT, asked_for, run_dir).run
    log = EventLog(run_dir.events, "supervisor")
    log.append(RunOpened("a", 1, 40, "0.1"))
    log.append(LaunchAsked(1, 0))
    log.append(AttemptEnded(1, 1, "failed", "oom", "", "", "", "", 0))
    log.append(BatchShrunk(1, 2))
    shrunk = apply_micro_batch(run, run_dir, 2)
    save(run_dir, 20)
    again = PROGRAM.open_run(TEXT, asked_for, run_dir)
    assert again.notes == ("micro-batch 2, not 8: memory ran out with more",)
    for found in (shrunk, again.run, from_json(run_dir.resolved.read_text())):
        assert (found.batch.micro_batch, global_batch(found)) == (2, global_batch(run))
    assert global_batch(run) == 8


def test_another_micro_batch_at_the_same_global_batch_resumes_and_is_announced(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, replace(spec(), batch=Batch(micro_batch=8)), run_dir)
    save(run_dir, 20)
    opened = PROGRAM.open_run(TEXT, replace(spec(), batch=Batch(micro_batch=2, global_batch=8)), run_dir)
    assert (opened.run.batch.micro_batch, global_batch(opened.run)) == (2, 8)
    assert "was 8" in opened.notes[0]
    assert "not bit-equal" in opened.notes[0]
    with pytest.raises(UserError, match="global_batch is 4, the run began with 8"):
        PROGRAM.open_run(TEXT, replace(spec(), batch=Batch(micro_batch=4)), run_dir)


def shrunk_to(run_dir: RunDir, micro_batch: int) -> None:
    log = EventLog(run_dir.events, "supervisor")
    for event in (RunOpened("a", 1, 40, "0.1"), LaunchAsked(1, 0), BatchShrunk(1, micro_batch)):
        log.append(event)
    log.close()


def test_a_supervisor_that_died_before_it_wrote_a_smaller_batch_down_is_no_change_of_the_user(run_dir: RunDir) -> None:
    asked = replace(spec(), batch=Batch(micro_batch=8))
    PROGRAM.open_run(TEXT, asked, run_dir)
    save(run_dir, 20)
    shrunk_to(run_dir, 2)
    found = PROGRAM.open_run(TEXT, asked, run_dir).run
    assert (found.batch.micro_batch, global_batch(found)) == (2, 8)
    assert from_json(run_dir.resolved.read_text()) == found


def test_a_micro_batch_that_the_user_chose_smaller_still_holds(run_dir: RunDir) -> None:
    run = PROGRAM.open_run(TEXT, replace(spec(), batch=Batch(micro_batch=8)), run_dir).run
    shrunk_to(run_dir, 4)
    apply_micro_batch(run, run_dir, 4)
    own = PROGRAM.open_run(TEXT, replace(spec(), batch=Batch(micro_batch=1, global_batch=8)), run_dir)
    assert own.notes == ()
    assert own.run.batch.micro_batch == 1
    assert apply_micro_batch(own.run, run_dir, 4) == own.run


def test_a_finished_run_has_nothing_left_to_do_until_it_is_given_more_steps(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(40), run_dir)
    finish(run_dir, 40)
    opened = PROGRAM.open_run(TEXT, spec(40), run_dir)
    assert (opened.finished, opened.fresh) == (True, False)
    assert "is finished: step 40 of 40" in opened.notes[0]
    assert not PROGRAM.open_run(TEXT, spec(80), run_dir).finished


def test_a_finished_run_whose_export_is_not_there_is_not_finished(run_dir: RunDir) -> None:
    exporting = replace(spec(40), checkpoint=replace(spec().checkpoint, final="hf"))
    PROGRAM.open_run(TEXT, spec(40), run_dir)
    finish(run_dir, 40)
    assert not PROGRAM.open_run(TEXT, exporting, run_dir).finished
    run_dir.final.mkdir()
    assert PROGRAM.open_run(TEXT, exporting, run_dir).finished


def test_an_end_before_the_step_that_is_reached_is_refused(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(40), run_dir)
    save(run_dir, 10)
    save(run_dir, 20)
    error = refused(spec(15), run_dir)
    assert error.what == "run.max_steps is 15, and the run has reached step 20"
    assert PROGRAM.open_run(TEXT, spec(20), run_dir).run.run.max_steps == 20
    assert PROGRAM.open_run(TEXT, spec(15), run_dir, 10).run.run.max_steps == 15


def test_opening_without_a_text_writes_and_renames_nothing(run_dir: RunDir) -> None:
    assert not PROGRAM.open_run(None, spec(), run_dir).finished
    assert not run_dir.path.exists()
    PROGRAM.open_run(TEXT, spec(), run_dir)
    for step in (10, 20):
        save(run_dir, step)
    opened = PROGRAM.open_run(None, spec(30), run_dir, 10)
    assert "kept as step_20.set_aside" in opened.notes[0]
    assert sorted(os.listdir(run_dir.checkpoints)) == ["step_10", "step_20"]
    assert PROGRAM.open_run(None, spec(30), run_dir).notes == ("continues to step 30; it began for 40",)


def test_going_back_drops_the_changes_after_the_step_and_a_kill_drops_none(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(), run_dir)
    for step in (10, 20):
        save(run_dir, step)
    EventLog(run_dir.events, "supervisor").append(LaunchAsked(1, 0))
    trainer = EventLog(run_dir.events, "trainer-001-rank0")
    for version, step in ((1, 10), (2, 11)):
        write_plan(run_dir.settings, ChangePlan(version=version, values={"optim.lr": 1.0}, before={}))
        trainer.append(SettingsApplied(1, version, step, (), 40))

    def left() -> list[bool]:
        return [bool(read_plan(run_dir.settings, version).values) for version in (1, 2)]

    PROGRAM.open_run(TEXT, spec(), run_dir)
    planned = PROGRAM.open_run(None, spec(), run_dir, 10)
    assert left() == [True, True]
    opened = PROGRAM.open_run(TEXT, spec(), run_dir, 10)
    assert opened.notes == planned.notes
    assert opened.notes[0] == "settings version 2 began at step 11, after the step to resume from: dropped"
    assert left() == [True, False]


def test_a_run_that_was_lengthened_goes_on_after_an_attempt_that_failed_in_its_set_up(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(), run_dir)
    save(run_dir, 30)
    save(run_dir, 60)
    supervisor, trainer = (EventLog(run_dir.events, name) for name in ("supervisor", "trainer-001-rank0"))
    supervisor.append(RunOpened("a", 1, 40, "0.1"))
    supervisor.append(LaunchAsked(1, 0))
    values = {"run.max_steps": 80}
    write_plan(run_dir.settings, ChangePlan(version=1, values=values, before={}, config={"run.max_steps": 40}))
    trainer.append(SettingsApplied(1, 1, 35, ("run.max_steps = 80",), 80))
    supervisor.append(AttemptEnded(1, -9, "failed", "signal", "", "", "", "", 60))
    supervisor.append(RunOpened("a", 2, 40, "0.1"))
    supervisor.append(LaunchAsked(2, 60))
    supervisor.append(AttemptEnded(2, 1, "failed", "hardware", "no port", "", "", "", 60))
    opened = PROGRAM.open_run(TEXT, spec(), run_dir)
    assert not opened.finished
    assert find_last_step(opened.run, opened.state, run_dir) == 80
    # The config was edited since: its author saw the plan. Before the step of the plan its values do not count.
    assert "run.max_steps is 50, and the run has reached step 60" in refused(spec(50), run_dir).what
    PROGRAM.open_run(TEXT, spec(), run_dir, 30)
    assert find_last_step(spec(), opened.state, run_dir) == 40


def test_a_run_that_was_shortened_below_its_step_ends_after_the_step_of_the_change(run_dir: RunDir) -> None:
    write_plan(
        run_dir.settings, ChangePlan(version=1, values={"run.max_steps": 5}, before={}, config={"run.max_steps": 40})
    )
    state = State(settings_applied=((1, 12),))
    assert find_last_step(spec(), state, run_dir) == 12
    assert find_last_step(spec(), state, run_dir, until_step=11) == 40
    assert find_last_step(spec(), State(), run_dir) == 40  # accepted, and not in force


def test_resume_never_is_for_a_run_without_checkpoints(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(), run_dir, "never")
    PROGRAM.open_run(TEXT, spec(), run_dir, "never")
    save(run_dir, 10)
    assert "newest at step 10" in refused(spec(), run_dir, "never").what


def test_resume_at_a_step_sets_newer_checkpoints_aside_and_deletes_none(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(), run_dir)
    for step, complete in ((10, True), (20, True), (30, True), (40, False)):
        save(run_dir, step, complete=complete)
    (run_dir.checkpoints / "step_30.set_aside").mkdir()
    opened = PROGRAM.open_run(TEXT, spec(), run_dir, 20)
    assert sorted(os.listdir(run_dir.checkpoints)) == [
        "step_10",
        "step_20",
        "step_30.set_aside",
        "step_30.set_aside.2",
        "step_40.set_aside",
    ]
    assert len(opened.notes) == 2
    newest = newest_complete(run_dir.checkpoints)
    assert newest is not None
    assert newest.step == 20


def test_a_finished_run_that_is_taken_back_is_not_finished(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(40), run_dir)
    save(run_dir, 20)
    save(run_dir, 40)
    finish(run_dir, 40)
    assert not PROGRAM.open_run(TEXT, spec(40), run_dir, 20).finished


@pytest.mark.parametrize(("step", "what"), [(15, "no such checkpoint"), (20, "SHA-256"), (30, "COMPLETE.json")])
def test_resume_at_a_step_that_is_not_whole_is_refused(run_dir: RunDir, step: int, what: str) -> None:
    PROGRAM.open_run(TEXT, spec(), run_dir)
    save(run_dir, 10)
    save(run_dir, 20)
    save(run_dir, 30, complete=False)
    (run_dir.checkpoint(20) / "state.bin").write_bytes(b"x" * 100)
    error = refused(spec(), run_dir, step)
    assert what in error.what
    assert "complete checkpoints: 10, 20" in error.fix


def test_a_resolved_form_that_cannot_be_read_is_refused(run_dir: RunDir) -> None:
    PROGRAM.open_run(TEXT, spec(), run_dir)
    run_dir.resolved.write_text('{"run": 1}')
    assert refused(spec(), run_dir).where == str(run_dir.resolved)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the directory should be")
    with pytest.raises(UserError, match="cannot be written"):
        PROGRAM.open_run(TEXT, spec(), RunDir(tmp_path / "runs" / "a"))
