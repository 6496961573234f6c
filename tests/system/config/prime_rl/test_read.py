from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from prime_train.config import detect
from prime_train.config.parsed_config import (
    GENERATION,
    MISSING_KEY,
    NOT_A_CHOICE,
    OTHER_GENERATION,
    OTHER_MEMBER,
    OUT_OF_BOUNDS,
    PASSED_THROUGH,
    SET_TWICE,
    UNKNOWN_KEY,
    WRONG_TYPE,
    Fault,
    Reading,
)
from prime_train.config.prime_rl.schema import generations, load, months
from prime_train.config.schema import table_below
from prime_train.core.findings import Severity
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.model.shape import shape_from_registry
from prime_train.rules.fix import fix_text
from prime_train.rules.judge import Verdict, lint, lint_merged
from prime_train.spec import ENDLESS_STEPS
from prime_train.spec.answers import prime_rl_of
from prime_train.toml.document import dotted
from tests.unit.config.prime_rl.files import (
    EVALS_2026_08,
    FILES,
    OVERLAY_2026_08,
    RL_2026_01,
    RL_2026_05,
    RL_2026_08,
    SFT_2026_08,
)


def _faults(text: str, generation: str | None = None) -> list[Fault]:
    return [fault for fault in _read(text, generation).faults if fault.code != GENERATION]


def _read(text: str, generation: str | None = None) -> Reading:
    return detect.read(text, "config.toml", generation)


def _only(text: str, generation: str | None = None) -> Fault:
    (fault,) = _faults(text, generation)
    return fault


@pytest.mark.parametrize(("key", "text"), FILES.items(), ids=lambda value: "-".join(value) if value in FILES else "")
def test_a_good_file_has_no_fault(key: tuple[str, str], text: str) -> None:
    generation, root = key
    reading = _read(text, generation)
    assert (reading.dialect, reading.generation, reading.root) == ("prime-rl", generation, root)
    assert [fault for fault in reading.faults if fault.code != GENERATION] == []
    assert reading.run is not None


@pytest.mark.usefixtures("three_generations")
@pytest.mark.parametrize("generation", [generation for generation, root in FILES if root == "rl"])
def test_an_rl_file_gives_its_generation_by_its_keys(generation: str) -> None:
    reading = _read(FILES[generation, "rl"])
    assert reading.generation == generation
    assert reading.because == "all of its keys are legal there"


def test_the_file_itself_states_its_generation() -> None:
    reading = _read(f'{RL_2026_08}\n[prime_train]\nprime_rl = "2026-05"\n', "2026-01")
    assert reading.generation == "2026-05"
    assert reading.because == "prime_train.prime_rl names it"
    (told,) = [fault for fault in reading.faults if fault.code == GENERATION]
    assert told.severity is Severity.WARNING
    assert told.patch == {"prime_train.prime_rl": "2026-01"}


def test_a_file_that_fits_several_is_reported() -> None:
    (told,) = _read('[model]\nname = "Qwen/Qwen3-1.7B"\n[optim]\nlr = 1e-5\n[data]\nname = "x"\nseq_len = 64\n').faults
    assert told.code == GENERATION
    assert "2026-08, 2026-05, 2026-01" in told.what


# --- faults --------------------------------------------------------------------------------------


def test_a_misspelt_key_names_the_one_that_was_meant() -> None:
    fault = _only(RL_2026_08.replace("group_size = 8", "group_siz = 8"))
    assert (fault.code, fault.key) == (UNKNOWN_KEY, ("orchestrator", "group_siz"))
    assert fault.patch == {"orchestrator.group_siz": None, "orchestrator.group_size": 8}


def test_a_misspelt_alias_names_the_alias_and_silences_rules_on_its_field() -> None:
    fault = _only(RL_2026_05.replace("group_size = 8", "rolouts_per_example = 8"), "2026-05")
    assert fault.patch == {"orchestrator.rolouts_per_example": None, "orchestrator.rollouts_per_example": 8}
    assert fault.shadows == "rollout.group_size"


def test_a_key_in_the_wrong_table_names_its_own() -> None:
    fault = _only(RL_2026_08.replace("[orchestrator]\n", "[orchestrator]\nmatmul_precision = 'high'\n"))
    assert fault.code == UNKNOWN_KEY
    assert fault.patch["trainer.matmul_precision"] == "high"


@pytest.mark.parametrize(
    ("text", "generation", "to"),
    [
        ("[orchestrator.sampling]\nmax_tokens = 64", "2026-08", "orchestrator.train.sampling.max_completion_tokens"),
        ("[orchestrator]\nrollouts_per_example = 4", "2026-08", "orchestrator.group_size"),
        ("[inference.parallel]\ntp = 2", "2026-08", "inference.vllm.tensor_parallel_size"),
        ("[inference]\ngpu_memory_utilization = 0.5", "2026-08", "inference.vllm.gpu_memory_utilization"),
        ("[inference.vllm]\ngpu_memory_utilization = 0.5", "2026-05", "inference.gpu_memory_utilization"),
        ("[trainer.model.experimental.lora]\nrank = 4", "2026-08", "trainer.model.lora.rank"),
        ("[orchestrator]\nlora_name = 'a'", "2026-05", "orchestrator.student.model.lora.name"),
    ],
)
def test_a_key_of_another_generation_names_its_present_one(text: str, generation: str, to: str) -> None:
    faults = [fault for fault in _faults(text, generation) if fault.code == OTHER_GENERATION and fault.patch]
    assert len(faults) == 1
    value: Any = faults[0].patch
    around, _, last = to.rpartition(".")
    assert to in value or last in value[around]
    assert f"renamed in {generation}" in faults[0].what


@pytest.mark.parametrize(
    "slip",
    ["[trainer.optim]\nlrr = 3.0", "[trainer.scheduler]\ntyp = 'linear'", "[trainer.weight_broadcast]\nkind = 1"],
)
def test_what_january_drops_in_silence_is_an_error(slip: str) -> None:
    fault = _only(RL_2026_01.replace("[trainer.optim]\nlr = 2e-6\n", f"{slip}\n"))
    assert (fault.code, fault.severity) == (UNKNOWN_KEY, None)


def test_a_kebab_key_is_no_key_in_a_file() -> None:
    fault = _only(SFT_2026_08.replace("micro_batch_size", "micro-batch-size"))
    assert fault.patch == {"data.micro-batch-size": None, "data.micro_batch_size": 2}


def test_types_bounds_and_choices() -> None:
    cases = {
        'batch_size = "many"': WRONG_TYPE,
        "batch_size = 0": OUT_OF_BOUNDS,
        "max_off_policy_steps = -1": OUT_OF_BOUNDS,
        "tokenizer = 3": WRONG_TYPE,
    }
    for line, code in cases.items():
        key = line.split()[0]
        text = RL_2026_08.replace("batch_size = 64\n", "" if key == "batch_size" else "batch_size = 64\n")
        fault = _only(text.replace("[orchestrator]\n", f"[orchestrator]\n{line}\n"))
        assert (fault.code, fault.key) == (code, ("orchestrator", key)), line
    fault = _only(RL_2026_08.replace("[trainer.model]\n", "[trainer.model]\nimpl = 'custm'\n"))
    assert (fault.code, fault.patch) == (NOT_A_CHOICE, {"trainer.model.impl": "custom"})


def test_what_pydantic_converts_is_a_warning() -> None:
    fault = _only(RL_2026_08.replace("batch_size = 64", 'batch_size = "64"'))
    assert (fault.code, fault.severity) == (WRONG_TYPE, Severity.WARNING)
    assert fault.patch == {"orchestrator.batch_size": 64}


def test_a_key_of_another_member_of_a_union() -> None:
    text = RL_2026_05.replace('type = "linear"', 'type = "constant"').replace("warmup_steps = 4\n", "")
    fault = _only(text)
    assert (fault.code, fault.key) == (OTHER_MEMBER, ("trainer", "scheduler", "decay_steps"))


def test_an_alias_is_taken_where_it_stands_alone() -> None:
    alias = RL_2026_05.replace("group_size = 8", "rollouts_per_example = 8")
    reading = _read(alias)
    assert reading.faults == ()
    assert reading.run is not None
    parts = prime_rl_of(reading.run)
    assert parts.rollout is not None
    assert parts.rollout.group_size == 8
    assert reading.key("rollout.group_size") == "orchestrator.rollouts_per_example"
    both = _only(RL_2026_05.replace("group_size = 8", "group_size = 8\nrollouts_per_example = 8"))
    assert both.code == SET_TWICE


def test_a_vllm_argument_that_vllm_does_not_have_is_a_warning() -> None:
    fault = _only(RL_2026_08.replace("max_num_seqs", "max_num_seq"))
    assert fault.code == PASSED_THROUGH
    assert fault.fix == "inference.vllm.max_num_seqs = 64"
    assert fault.patch == {"inference.vllm.max_num_seq": None, "inference.vllm.max_num_seqs": 64}
    both = _only(RL_2026_08.replace("max_num_seqs", "max_num_seq = 8\nmax_num_seqs"))
    assert both.fix == "take it out: inference.vllm.max_num_seqs is set already"
    assert both.patch == {"inference.vllm.max_num_seq": None}


def test_a_missing_key_is_reported_where_the_file_is_a_whole_run() -> None:
    fault = _only(RL_2026_08 + "\n[trainer.heartbeat]\n")
    assert (fault.code, fault.key) == (MISSING_KEY, ("trainer", "heartbeat", "url"))


def test_a_file_that_is_not_toml_is_judged_as_far_as_it_can_be_read() -> None:
    verdict = lint(
        RL_2026_08.replace("batch_size = 64", "batch_size = ").replace("group_size = 8", "group_siz = 8"), "rl.toml"
    )
    assert verdict.dialect == "prime-rl"
    assert [finding.code for finding in verdict.findings if finding.severity is Severity.ERROR] == ["CFG001", "CFG002"]


# --- [prime_train] -------------------------------------------------------------------------------


def test_our_own_table_is_taken_out_and_judged() -> None:
    ours = '\n[prime_train]\nstop_grace_s = 5.0\npython = "/venv/bin/python"\n[prime_train.restart]\nbackoff_s = 1.0\n'
    assert _faults(RL_2026_08 + ours) == []
    fault = _only(RL_2026_08 + "\n[prime_train]\nstop_grace = 5.0\n")
    assert (fault.code, fault.key) == (UNKNOWN_KEY, ("prime_train", "stop_grace"))


# --- what the rules see --------------------------------------------------------------------------


def test_the_run_has_the_file_s_values_and_the_defaults_of_its_generation() -> None:
    run = _read(RL_2026_08).run
    assert run is not None
    parts = prime_rl_of(run)
    assert parts.rollout is not None
    assert run.inference is not None
    assert parts.lora is not None
    assert parts.environments is not None
    assert parts.environments.train is not None
    assert (run.run.name, run.run.max_steps) == ("words", 40)
    assert (parts.rollout.group_size, parts.rollout.max_completion_tokens) == (8, 512)
    assert (run.inference.ctx_tokens, run.inference.gpu_memory_fraction, run.inference.max_sequences) == (4096, 0.9, 64)
    assert parts.lora.rank == 16
    assert parts.environments.train[0].id == "word-count"
    assert parts.environments.train[0].runtime == "subprocess"
    assert parts.resume is None
    assert parts.evaluation is None


def test_the_key_map_speaks_the_file_s_own_words() -> None:
    expected = {
        RL_2026_01: "orchestrator.sampling.max_tokens",
        RL_2026_05: "orchestrator.train.sampling.max_completion_tokens",
    }
    for text, key in expected.items():
        reading = _read(text)
        assert reading.key("rollout.max_completion_tokens") == key
        assert reading.has("rollout.max_completion_tokens")
        assert not reading.has("batch.micro_batch")
    assert _read(RL_2026_08).key("environments.train.0.id") == "orchestrator.train.source.0.env.taskset.id"


def test_a_value_at_fault_is_not_known_to_the_rules() -> None:
    reading = _read(RL_2026_08.replace("group_size = 8", "group_size = 0"))
    assert reading.run is not None
    parts = prime_rl_of(reading.run)
    assert parts.rollout is not None
    assert parts.rollout.group_size is None
    assert not reading.has("rollout.group_size")


@pytest.mark.parametrize("probabilities", ['["0.5", "0.5"]', "[0.5, {}]", "1000000", '"0.5"'])
@pytest.mark.parametrize("kind", ["sft", "fake"])  # of data that has no probabilities, their type is not checked
def test_an_array_with_elements_of_another_type_is_not_known_to_the_rules(kind: str, probabilities: str) -> None:
    data = f'[data]\ntype = "{kind}"\nsubsets = ["a", "b"]\nprobabilities = {probabilities}\n'
    verdict = lint(f'max_steps = 5\n[model]\nname = "a/b"\n{data}', "sft.toml", "2026-05")
    assert verdict.run is not None
    parts = prime_rl_of(verdict.run)
    assert parts.finetune is not None
    assert parts.finetune.subsets == ("a", "b")
    assert parts.finetune.sampling_probs is None


def test_a_run_without_an_end_and_a_resume_from_the_latest() -> None:
    run = _read(RL_2026_05.replace("max_steps = 40\n", "")).run
    assert run is not None
    parts = prime_rl_of(run)
    assert run.run.max_steps == ENDLESS_STEPS
    assert parts.resume is not None
    assert parts.resume.step == -1


# --- several files -------------------------------------------------------------------------------


def test_an_overlay_alone_is_not_a_whole_run() -> None:
    alone = OVERLAY_2026_08.replace("[orchestrator]\ngroup_size = 16\n", "")
    assert [fault.code for fault in _faults(alone, "2026-08")] == []


@pytest.mark.parametrize(
    "text",
    [
        '[[orchestrator.train.source]]\nname = "math"\nenv.taskset.id = "math"\n',  # an environment for any run
        '[model]\nname = "Qwen/Qwen3-1.7B"\n[orchestrator.renderer]\nname = "qwen3"\n',  # a model for any run
    ],
)
def test_a_file_of_tables_alone_that_lacks_one_is_an_overlay(text: str) -> None:
    assert [fault.code for fault in _faults(text, "2026-08")] == []


@pytest.mark.parametrize(
    "text",
    [
        'output_dir = "outputs/example"\n[slurm]\njob_name = "example"\n',
        "[ckpt]\nkeep_last = 2\n[inference.vllm]\nmax_num_seqs = 8\n",
        '[slurm]\njob_name = "example"\n[deployment]\nnum_train_gpus = 4\n',
    ],
)
@pytest.mark.parametrize("root", ["rl", "sft"])
def test_an_overlay_is_not_asked_for_what_its_base_may_state(text: str, root: str) -> None:
    verdict = lint(text, f"slurm_{root}.toml", "2026-08")
    assert verdict.run is not None
    assert [finding.code for finding in verdict.findings] == []
    beside = lint(text.replace("[ckpt]", "[trainer.optim]\nmax_norm = 0.0\n[ckpt]"), f"slurm_{root}.toml", "2026-08")
    assert [finding.code for finding in beside.findings] == (["OPT004"] if "[ckpt]" in text else [])


def test_a_line_that_cannot_be_read_may_state_what_seems_to_be_missing() -> None:
    whole = RL_2026_08.replace("[ckpt]\ninterval = 20\n", "")
    assert "CKP003" in {finding.code for finding in lint(whole, "rl.toml").findings}
    broken = {finding.code for finding in lint(whole + "[ckpt\ninterval = 20\n", "rl.toml").findings}
    assert "CFG001" in broken
    assert "CKP003" not in broken


def test_a_table_whose_keys_all_move_is_reported_by_its_keys_alone() -> None:
    text = RL_2026_08.replace("[trainer.model.lora]", "[trainer.model.experimental.lora]")
    fault = _only(text, "2026-08")
    assert dotted(fault.key) == "trainer.model.experimental.lora"
    cured = fix_text(text, lambda text: lint(text, "rl.toml", "2026-08"))
    assert "experimental" not in cured.text
    assert cured.verdict.ok


def test_a_table_that_a_person_has_to_take_apart_is_reported_once_beside_its_keys() -> None:
    inner = "\n[orchestrator.val]\ninterval = 5\nextra = {deep = {deeper = 1}}\n"
    told = [dotted(fault.key) for fault in _faults(RL_2026_08 + inner, "2026-08")]
    assert told == ["orchestrator.val", "orchestrator.val.interval", "orchestrator.val.extra.deep.deeper"]


@pytest.mark.usefixtures("three_generations")
def test_a_finding_states_how_the_generation_is_known() -> None:
    text = RL_2026_08.replace("batch_size", "batch_siz")
    (finding,) = [finding for finding in lint(text, "rl.toml").findings if finding.code == "CFG002"]
    assert finding.why.endswith("; the file is judged as prime-rl 2026-08: it has fewest errors there: 1")
    (finding,) = [finding for finding in lint(text, "rl.toml", "2026-08").findings if finding.code == "CFG002"]
    assert finding.why.endswith("; the file is judged as prime-rl 2026-08: --prime-rl names it")


def test_a_run_without_a_table_that_it_needs_is_reported() -> None:
    whole = 'max_steps = 10\n[model]\nname = "Qwen/Qwen3-1.7B"\n[orchestrator]\nbatch_size = 64\n'
    fault = _only(whole, "2026-08")
    assert (fault.code, fault.key) == (MISSING_KEY, ("trainer",))


def test_files_are_merged_left_to_right_and_each_finding_stands_in_its_own() -> None:
    overlay = OVERLAY_2026_08.replace("group_size = 16", "group_size = 0")
    verdict = lint_merged(((RL_2026_08, "base.toml"), (overlay, "over.toml")), "2026-08")
    (error,) = [finding for finding in verdict.findings if finding.severity is Severity.ERROR]
    assert (error.path, error.span.line, error.key) == ("over.toml", 5, "orchestrator.group_size")
    base = RL_2026_08.replace("batch_size = 64", "batch_siz = 64")
    verdict = lint_merged(((base, "base.toml"), (OVERLAY_2026_08, "over.toml")), "2026-08")
    (error,) = [finding for finding in verdict.findings if finding.severity is Severity.ERROR]
    assert (error.path, error.key) == ("base.toml", "orchestrator.batch_siz")
    assert verdict.run is not None
    parts = prime_rl_of(verdict.run)
    assert parts.rollout is not None
    assert parts.rollout.group_size == 16


# --- migration -----------------------------------------------------------------------------------


def test_a_january_file_is_taken_to_august() -> None:
    def safe(verdict: Verdict) -> Verdict:
        return verdict._replace(findings=tuple(finding for finding in verdict.findings if finding.safe))

    result = fix_text(RL_2026_01, lambda text: lint(text, "rl.toml", "2026-08"), safe)
    left = [finding.key for finding in result.verdict.findings if finding.severity is Severity.ERROR]
    assert left == ["max_async_level"]
    values = tomli.loads(result.text)
    assert values["deployment"] == {"num_train_gpus": 2, "num_infer_gpus": 1}
    assert values["orchestrator"]["train"]["source"] == [
        {"name": "word-count", "env": {"taskset": {"id": "word-count"}}}
    ]
    assert values["orchestrator"]["train"]["sampling"] == {"max_completion_tokens": 512, "temperature": 0.9}
    assert values["inference"]["vllm"] == {"max_model_len": 4096, "tensor_parallel_size": 1}
    assert values["monitors"]["wandb"] == {"project": "words", "name": "words-1b"}


# --- what must always hold -----------------------------------------------------------------------


def _keys(generation: str) -> Iterator[str]:
    for path, item in load(generation).paths("rl"):
        if table_below(item.shape)[0] is None and "." not in "".join(str(part) for part in path):
            yield ".".join(str(part) for part in path)


@given(
    generation=st.sampled_from(generations()),
    data=st.data(),
    value=st.one_of(
        st.integers(), st.floats(), st.booleans(), st.text(max_size=5), st.lists(st.integers(), max_size=2)
    ),
)
def test_any_value_of_any_key_is_judged(generation: str, data: st.DataObject, value: object) -> None:
    """Nothing raises, and a fault stands at the key or nowhere."""
    from prime_train.toml.document import to_toml

    key = data.draw(st.sampled_from(sorted(_keys(generation))))
    text = f"{key} = {to_toml(value)}\n" if isinstance(value, bool | int | float | str | list) else ""
    for fault in _read(text, generation).faults:
        assert fault.what
        assert (
            fault.code == GENERATION or fault.key[:1] == (key.split(".")[0],) or fault.code in (MISSING_KEY, "CFG001")
        )


def test_evals_has_its_sources() -> None:
    run = _read(EVALS_2026_08).run
    assert run is not None
    parts = prime_rl_of(run)
    assert parts.environments is not None
    assert parts.environments.evaluate is not None
    assert parts.environments.evaluate[0].id == "word-count"


@pytest.mark.parametrize(
    ("written", "budget", "codes"),
    [
        ("budget_hours = 12\nbudget_usd = 99.5", (12.0, 99.5), []),
        ("", (None, None), []),
        ("budget_hours = 0", (None, None), [OUT_OF_BOUNDS]),
        ("budget_usd = 'much'", (None, None), [WRONG_TYPE]),
        ("budget_hours = inf", (None, None), [OUT_OF_BOUNDS]),
        ("budget_hours = true", (None, None), [WRONG_TYPE]),
    ],
)
def test_a_budget_of_our_own(written: str, budget: tuple[float | None, float | None], codes: list[str]) -> None:
    reading = detect.read(f"{RL_2026_08}\n[prime_train]\n{written}\n", "rl.toml", "2026-08")
    assert reading.run is not None
    ours = reading.run.prime_train
    assert (ours.budget_hours, ours.budget_usd) == budget
    assert [fault.code for fault in reading.faults if fault.key[0] == "prime_train"] == codes
    assert reading.key("prime_train.budget_hours") == "prime_train.budget_hours"


@pytest.mark.parametrize(("said", "train_ids"), [("", (1,)), ("trainer_gpu_ids = [2, 3]\n", (2, 3))])
def test_the_gpus_of_2026_01_that_a_file_does_not_name_are_the_defaults(said: str, train_ids: tuple[int, ...]) -> None:
    run = _read(said + "[orchestrator]\nbatch_size = 8\n[trainer]\n", "2026-01").run
    assert run is not None
    gpus = prime_rl_of(run).deployment
    assert gpus is not None
    assert (gpus.train_gpu_ids, gpus.infer_gpu_ids) == (train_ids, (0,))
    assert (gpus.train_gpus, gpus.infer_gpus) == (len(train_ids), 1)


def test_the_length_of_the_server_in_2026_01_is_not_that_at_the_top() -> None:
    reading = _read("max_model_len = 4096\n[orchestrator]\n[trainer]\n[inference]\n", "2026-01")
    assert reading.run is not None
    assert reading.run.inference is not None
    assert reading.key("inference.ctx_tokens") == "inference.model.max_model_len"
    assert reading.run.inference.ctx_tokens is None


def test_an_sft_has_a_server_only_where_its_file_has_one() -> None:
    for generation in ("2026-01", "2026-05", "2026-08"):
        run = _read('[model]\nname = "Qwen/Qwen3-1.7B"\n[data]\nname = "example/words"\n', generation).run
        assert run is not None
        assert prime_rl_of(run).finetune is not None
        assert run.inference is None
    with_server = _read(SFT_2026_08 + "[inference]\n", "2026-08").run
    assert with_server is not None
    assert with_server.inference is not None


def test_a_file_that_only_evaluates_is_not_taken_for_a_run_of_ours() -> None:
    reading = _read('[[env]]\nid = "words"\nnum_examples = 5\nrollouts_per_example = 2\n', "2026-01")
    assert reading.root == "eval"
    assert reading.run is not None
    assert reading.run.format == "prime-rl"


def test_a_file_names_the_month_of_its_version_between_two_generations() -> None:
    own = '[prime_train]\nprime_rl = "2026-01"\nprime_rl_month = "2026-02"\n'
    text = own + '[trainer.model]\nname = "Qwen/Qwen3-0.6B"\n'
    reading = detect.read(text, "rl.toml")
    assert reading.generation == "2026-01"
    assert reading.run is not None
    parts = prime_rl_of(reading.run)
    assert reading.run.prime_rl is not None
    assert (parts.launch.generation, parts.launch.month) == ("2026-01", "2026-02")
    shape = shape_from_registry("Qwen/Qwen3-0.6B")
    assert shape is not None
    assert setup_of(reading.run, hardware_from_name("8xh100-80gb"), shape).era == "2026-02"


def test_a_month_before_the_first_generation_is_a_fault() -> None:
    reading = detect.read('[prime_train]\nprime_rl_month = "2025-02"\n[trainer.model]\nname = "x/y"\n', "rl.toml")
    assert any("prime_rl_month" in fault.key for fault in reading.faults)


def test_the_months_go_from_the_oldest_generation_to_the_newest() -> None:
    assert months()[:2] == ("2026-01", "2026-02")
    assert set(generations()) <= set(months())
