from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from prime_train import spec
from prime_train.config import detect, run_toml
from prime_train.config.parsed_config import (
    MISSING_KEY,
    NOT_A_CHOICE,
    OUT_OF_BOUNDS,
    SYNTAX,
    UNKNOWN_KEY,
    WRONG_TYPE,
    Fault,
)
from prime_train.config.schema import Array, Flag, Number, OneOf, Scalars, Shape, Table, Text
from prime_train.registry import gpus
from prime_train.rules.explain import BASE
from prime_train.spec.answers import hands_over_weights, launched_server, trains
from prime_train.toml.document import Document, to_toml

ADAPTER = TypeAdapter(spec.RunSpec)


def faults(text: str) -> list[Fault]:
    return list(run_toml.read(text, "run.toml").faults)


def only_fault(text: str) -> Fault:
    (fault,) = faults(text)
    return fault


# --- the walker and pydantic agree ---------------------------------------------------------------

_odd = st.one_of(
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text("abz-_/ é", max_size=5),
    st.lists(st.integers(0, 2), max_size=2),
    st.dictionaries(st.text("ab", min_size=1, max_size=2), st.integers(0, 2), max_size=1),
)


def _number(shape: Number) -> st.SearchStrategy[Any]:
    """Mostly within the bounds; the bounds themselves and what lies beside them too."""
    limits = [bound.limit for bound in shape.bounds] or [0]
    beside = [limit + step for limit in limits for step in (-1, 0, 1)] + [0.25, 5e-324, 300]
    numbers = [int(number) for number in beside] if shape.whole else beside
    legal = [number for number in numbers if all(bound.holds(number) for bound in shape.bounds)]
    return st.integers(0, 39).flatmap(lambda draw: st.sampled_from(numbers if draw == 0 else [*legal, *shape.words]))


def _fitting(shape: Shape) -> st.SearchStrategy[Any]:
    match shape:
        case Number():
            return _number(shape)
        case Text():
            return st.text("ab é\n", max_size=4)
        case Flag():
            return st.booleans()
        case OneOf(values=values):
            return st.sampled_from(values)
        case Array(item=item, min_len=min_len):
            return st.integers(0, 39).flatmap(
                lambda draw: st.lists(_value(item), min_size=0 if draw == 0 else min_len, max_size=3)
            )
        case Scalars():
            scalar = st.one_of(
                st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, -2.0]), st.text("ab-", max_size=3)
            )
            return st.dictionaries(st.text("ab-_", min_size=1, max_size=4), scalar, max_size=3)
        case Table():
            return _table(shape)
        case _:
            raise TypeError(f"run.toml has no {shape}")


def _value(shape: Shape) -> st.SearchStrategy[Any]:
    return st.integers(0, 59).flatmap(lambda draw: _odd if draw == 0 else _fitting(shape))


@st.composite
def _table(draw: st.DrawFn, table: Table) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, item in table.fields.items():
        if draw(st.integers(0, 29)) < (29 if item.required else 9):
            values[key] = draw(_value(item.shape))
    return values


def _in_field_names(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for key, value in values.items():
        item = table.fields[key]
        below = item.shape
        if isinstance(below, Table) and isinstance(value, dict) and value.keys() <= below.fields.keys():
            value = _in_field_names(below, value)
        named[item.name] = value
    return named


def _has_unknown_key(shape: Shape, value: object) -> bool:
    if isinstance(shape, Table) and isinstance(value, dict):
        return any(
            key not in shape.fields or _has_unknown_key(shape.fields[key].shape, below) for key, below in value.items()
        )
    if isinstance(shape, Array) and isinstance(value, list):
        return any(_has_unknown_key(shape.item, below) for below in value)
    return False


def _lacks_entries(shape: Shape, value: object) -> bool:
    """Whether a list is shorter than a file may have it: pydantic is not told (spec/annotations.py, MinLen)."""
    if isinstance(shape, Table) and isinstance(value, dict):
        return any(
            key in shape.fields and _lacks_entries(shape.fields[key].shape, below) for key, below in value.items()
        )
    return isinstance(shape, Array) and isinstance(value, list) and len(value) < shape.min_len


@settings(max_examples=200, deadline=None)
@given(_table(run_toml.training_schema()))
def test_walker_accepts_what_pydantic_accepts(values: dict[str, Any]) -> None:
    """pydantic knows one kind of run. A run that learns from rewards needs tasks, and no sources of text."""
    assume(_kind(values) not in ("serve", "rl", "command", "audio"))
    _compare(run_toml.training_schema(), values, values)


@settings(max_examples=200, deadline=None)
@given(_table(run_toml.serving_schema()))
def test_walker_accepts_what_pydantic_accepts_of_a_server(values: dict[str, Any]) -> None:
    """What is left out of such a file is filled in for pydantic, which knows one kind of run."""
    run: Any = values.get("run")
    assume(isinstance(run, dict))
    values |= {"run": {**run, "kind": "serve"}}
    whole = {"data": {"sources": []}, **values, "run": {"max_steps": spec.ENDLESS_STEPS, **values["run"]}}
    _compare(run_toml.serving_schema(), values, whole)


def _compare(schema: Table, written: dict[str, Any], whole: dict[str, Any]) -> None:
    reading = run_toml.read("".join(f"{key} = {to_toml(value)}\n" for key, value in written.items()), "run.toml")
    codes = {fault.code for fault in reading.faults}
    if _has_unknown_key(schema, written):  # pydantic would let it pass
        assert UNKNOWN_KEY in codes
        return
    server = written.get("inference")
    needs_model = "tasks" not in written or "data" not in schema.fields
    if _lacks_entries(schema, written) or (isinstance(server, dict) and "model" not in server and needs_model):
        assert codes
        return
    expected = _read_by_pydantic(whole)
    needs_server = "data" not in schema.fields and "inference" not in written
    assert (reading.faults == ()) == (expected is not None and not needs_server), reading.faults
    assert reading.faults or reading.run == expected


def _kind(values: Mapping[str, Any]) -> object:
    run = values.get("run")
    return run.get("kind") if isinstance(run, dict) else None


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_config_with_one_changed_value_is_read_as_pydantic_reads_it(data: st.DataObject) -> None:
    """As above, from a config that is good but for one value: the walker names that key."""
    good = gpus.presets()["quickstart"].read_text()
    document = run_toml.read(good, "run.toml").document
    section = data.draw(st.sampled_from([key for key in document.values if key != "data"]))
    table = run_toml.schema().fields[section].shape
    assert isinstance(table, Table)
    key = data.draw(st.sampled_from(list(table.fields)))
    value = data.draw(st.one_of(_fitting(table.fields[key].shape), _odd))
    changed = {**document.values, section: {**document.values.get(section, {}), key: value}}
    assume(_kind(changed) not in ("serve", "rl", "command", "audio"))
    reading = run_toml.read("".join(f"{name} = {to_toml(below)}\n" for name, below in changed.items()), "run.toml")
    expected = None if _lacks_entries(run_toml.schema(), changed) else _read_by_pydantic(changed)
    if expected is None:
        assert reading.faults
        assert all(fault.key[:2] == (section, key) for fault in reading.faults)
    elif not _has_unknown_key(run_toml.schema(), changed):
        assert reading.run == expected


def _read_by_pydantic(values: Mapping[str, Any]) -> spec.RunSpec | None:
    try:
        run = ADAPTER.validate_json(json.dumps(_in_field_names(run_toml.schema(), values)), strict=True)
    except ValidationError:
        return None
    server = launched_server(run)
    return run if server is None else replace(run, inference=run_toml._infer(run, server))


def test_presets_are_read_without_fault() -> None:
    documents = {path: Document.parse(path.read_text(), str(path)) for path in gpus.presets().values()}
    ours = [path for path, document in documents.items() if detect.is_run_toml(document)]
    assert {"quickstart", "serve", "rl-vllm-cpu"} <= {path.stem for path in ours}
    for path in ours:
        reading = run_toml.read(path.read_text(), str(path))
        assert reading.faults == ()
        assert reading.run is not None
        assert spec.from_json(spec.to_json(reading.run)) == reading.run


# --- faults --------------------------------------------------------------------------------------


def test_every_fault_is_reported_not_only_the_first() -> None:
    text = BASE + '[optim]\nlr = "x"\nbeta1 = 1.0\nbeta3 = 1\n[model]\ntie_embeddings = 0\n[schedule]\nkind = "wds"\n'
    assert sorted(fault.code for fault in faults(text)) == [
        UNKNOWN_KEY,
        WRONG_TYPE,
        WRONG_TYPE,
        OUT_OF_BOUNDS,
        NOT_A_CHOICE,
    ]


def test_a_faulty_field_takes_its_default_so_that_rules_can_run() -> None:
    reading = run_toml.read(BASE + '[optim]\nlr = "x"\nbeta1 = 0.8\n', "run.toml")
    assert reading.run is not None
    assert reading.run.optim == replace(spec.Optim(), beta1=0.8)


def test_no_run_where_a_required_field_is_missing_or_wrong() -> None:
    assert run_toml.read("[run]\nname = 'x'\n[[data.sources]]\nkind='python-stdlib'\n", "run.toml").run is None
    assert run_toml.read(BASE.replace("max_steps = 1000", 'max_steps = "a"'), "run.toml").run is None


@pytest.mark.parametrize(
    ("written", "key", "patch"),
    [
        ("[batch]\nmicro_bach = 4", "batch.micro_bach", {"batch.micro_bach": None, "batch.micro_batch": 4}),
        ("[optim]\nleraning_rate = 1e-3", "optim.leraning_rate", None),
        ("[batch]\nlr = 1e-3", "batch.lr", {"batch.lr": None, "optim.lr": 1e-3}),
        ("[data]\nseq_len = 8", "data.seq_len", {"data.seq_len": None}),
        ("[optim]\nlearning_rate = 1e-3", "optim.learning_rate", {"optim.learning_rate": None, "optim.lr": 1e-3}),
        ("[checkpoint]\nasync_save = false", "checkpoint.async_save", None),
        ("[optimiser]\nlr = 1e-3", "optimiser", {}),  # a name of other programs, which a repair leaves to the user
        ("[batch]\nmicro-batch = 4", "batch.micro-batch", {"batch.micro-batch": None, "batch.micro_batch": 4}),
        ("[batch]\nzzzzzz = 4", "batch.zzzzzz", {}),
        ('[batch]\n"a b" = 4', 'batch."a b"', {}),
    ],
)
def test_unknown_key(written: str, key: str, patch: Mapping[str, object] | None) -> None:
    base = BASE.replace("[batch]\nmicro_batch = 8\n", "")
    if written.startswith("[data]"):
        base, written = base.replace("ctx_tokens = 512", "ctx_tokens = 512\nseq_len = 8"), ""
    fault = only_fault(base + written + "\n")
    assert fault.code == UNKNOWN_KEY
    assert fault.what.startswith(f"{key} is not a ")
    if patch is not None:
        assert dict(fault.patch) == patch


def test_misspelt_key_names_the_nearest_one() -> None:
    assert "did you mean interval_steps?" in only_fault(BASE + "[checkpoint]\ninterval_step = 5\n").what


@pytest.mark.parametrize(
    ("written", "what", "patch"),
    [
        ('[optim]\nlr = "1e-3"', 'optim.lr must be a number, not the string "1e-3"', {"optim.lr": 1e-3}),
        ("[model]\nlayers = 2.5", "model.layers must be a whole number, not the number 2.5", {}),
        ("[model]\nlayers = 2.0", "model.layers must be a whole number, not the number 2.0", {"model.layers": 2}),
        ("[model]\nlayers = true", "model.layers must be a whole number, not true", {}),
        ("[optim]\nlr = true", "optim.lr must be a number, not true", {}),
        ("[model]\ncompile = 'true'", 'model.compile must be true or false, not the string "true"', None),
        ("[run.name]\na = 1", None, None),
        ("optim = 3", "optim must be a table, not the number 3", {}),
        ("[eval]\nprompts = 'a'", 'eval.prompts must be an array, not the string "a"', {"eval.prompts": ["a"]}),
        ("[optim]\nlr = 1979-05-27", "optim.lr must be a number, not the date or time 1979-05-27", {}),
    ],
)
def test_wrong_type(written: str, what: str | None, patch: Mapping[str, object] | None) -> None:
    base = BASE.replace('name = "example"\n', "") if "run.name" in written else BASE
    text = f"{written}\n{base}" if written.startswith("optim") else f"{base}{written}\n"
    fault = only_fault(text)
    assert fault.code == WRONG_TYPE
    if what is not None:
        assert fault.what == what
    if patch is not None:
        assert dict(fault.patch) == patch


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-1.5", "1" + "0" * 400])
def test_numbers_without_meaning_are_refused(value: str) -> None:
    assert only_fault(BASE + f"[optim]\nlr = {value}\n").code == OUT_OF_BOUNDS


def test_one_table_where_an_array_of_tables_is_wanted() -> None:
    text = "[run]\nname='x'\nmax_steps=1\n[data.sources]\nkind='python-stdlib'\n"
    fault = only_fault(text)
    assert fault.code == WRONG_TYPE
    assert "two brackets" in fault.fix
    assert dict(fault.patch) == {"data.sources": [{"kind": "python-stdlib"}]}


def test_missing_keys_and_tables_are_all_named() -> None:
    assert [(fault.code, fault.key) for fault in faults("[model]\nlayers = 2\n")] == [
        (MISSING_KEY, ("run",)),
        (MISSING_KEY, ("data",)),
    ]
    assert only_fault(BASE.replace("max_steps = 1000\n", "")).key == ("run", "max_steps")


def test_text_that_is_not_toml_has_one_fault_and_no_run() -> None:
    reading = run_toml.read(BASE + "[x\n", "run.toml")
    assert [fault.code for fault in reading.faults] == [SYNTAX]
    assert reading.run is None


def test_the_key_of_a_field_is_the_one_the_file_has() -> None:
    reading = run_toml.read(BASE, "run.toml")
    assert reading.key("checkpoint.async_save") == "checkpoint.async"
    assert reading.key("optim.lr") == "optim.lr"


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        (BASE, True),
        ("[run]\nkind = 'pretrain'", True),
        ("[run]\nname = 'x'", False),
        ("[run]\nname = 'x'\n[checkpoint]\ninterval_steps = 5", True),
        (BASE.replace("[data]", "[dta]").replace("[[data.", "[[dta."), True),
        (BASE.replace("[run]", "[rnu]"), True),
        ("[package]\nname = 'x'\n[profile.release]\nlto = true", False),
        ("[project]\nname = 'x'", False),
        ("run = 3\n[data]\n", False),
    ],
)
def test_may_be_run_toml(text: str, ours: bool) -> None:
    import tomli

    assert run_toml.may_be_run_toml(tomli.loads(text)) is ours


def test_a_file_of_nothing_but_faults_is_reported_in_part() -> None:
    """So that a megabyte of them takes seconds, not minutes."""
    assert len(faults(BASE.replace("[data]", f"[data]\nsampling_probs = [{'2.0, ' * 500}]"))) == 20
    found = faults(BASE + "".join(f"micro_batch_{number} = 1\n" for number in range(500)))
    assert len(found) == 500
    assert "did you mean" in found[0].what
    assert "did you mean" not in found[-1].what


# --- a server --------------------------------------------------------------------------------------

SERVE = '[run]\nname = "x"\nkind = "serve"\n[inference]\nmodel = "models/x"\n'


def test_a_server_needs_neither_steps_nor_data() -> None:
    reading = run_toml.read(SERVE, "run.toml")
    assert reading.faults == ()
    assert reading.run is not None
    assert reading.run.format == "run.toml"
    assert not trains(reading.run)
    assert reading.run.inference is not None
    assert (reading.run.inference.model_name, reading.run.inference.port) == ("models/x", 8000)


def test_a_misspelt_key_of_an_array_does_not_replace_a_key_that_is_set() -> None:
    (fault,) = faults(BASE.replace('kind = "python-stdlib"', 'kind = "python-stdlib"\nkid = "files"'))
    assert fault.fix == "take it out: data.sources.0.kind is set already"
    assert fault.patch == {"data.sources.0.kid": None}


def test_what_only_a_training_has_is_reported_in_its_words() -> None:
    told = faults(SERVE + "[data]\nctx_tokens = 8\n[optim]\nlr = 1.0\n") + faults(
        SERVE.replace('name = "x"', 'name = "x"\nmax_steps = 5')
    )
    assert [fault.what for fault in told] == [
        'data configures training, and run.kind = "serve" trains nothing',
        'optim configures training, and run.kind = "serve" trains nothing',
        'run.max_steps counts optimizer steps, and run.kind = "serve" trains nothing',
    ]
    assert {fault.code for fault in told} == {UNKNOWN_KEY}


def test_a_server_without_a_server_is_reported() -> None:
    fault = only_fault('[run]\nname = "x"\nkind = "serve"\n')
    assert (fault.code, fault.what) == (MISSING_KEY, "the table [inference] is missing")


def test_arguments_are_scalars() -> None:
    fault = only_fault(SERVE + "[inference.arguments]\nquantization = [1]\nmax-num-seqs = 4\nenable-lora = true\n")
    assert (fault.code, fault.key) == (WRONG_TYPE, ("inference", "arguments", "quantization"))


def test_arguments_that_rules_know_are_read_under_either_spelling() -> None:
    reading = run_toml.read(SERVE + '[inference.arguments]\nquantization = "fp8"\nmax-num-seqs = 4\n', "run.toml")
    assert reading.run is not None
    assert reading.run.inference is not None
    assert (reading.run.inference.quantization, reading.run.inference.max_sequences) == ("fp8", 4)
    assert reading.key("inference.max_sequences") == "inference.arguments.max-num-seqs"
    assert reading.key("inference.model_name") == "inference.model"


@pytest.mark.parametrize("kind", ["pretrain", "sft"])
def test_a_server_that_answers_the_tasks_of_a_training_needs_no_model(kind: str) -> None:
    text = BASE.replace("[run]\n", f'[run]\nkind = "{kind}"\n') + "[inference]\nkv_cache_gib = 1.0\n"
    (fault,) = run_toml.read(text, "run.toml").faults
    assert (fault.code, fault.key) == (MISSING_KEY, ("inference", "model"))
    reading = run_toml.read(text + '[[tasks]]\nkind = "reverse-text"\n', "run.toml")
    assert reading.faults == ()
    assert reading.run is not None
    assert hands_over_weights(reading.run)
    assert reading.run.inference is not None
    assert (reading.run.inference.model_name, reading.run.inference.ctx_tokens) == (None, reading.run.data.ctx_tokens)


def test_a_server_beside_a_training_is_read_with_it() -> None:
    reading = run_toml.read(BASE + '[inference]\nmodel = "models/x"\n', "run.toml")
    assert reading.faults == ()
    assert reading.run is not None
    assert reading.run.format == "run.toml"
    assert trains(reading.run)
    assert not hands_over_weights(reading.run)


def test_the_name_of_a_model_is_its_path_not_the_name_of_the_run() -> None:
    text = BASE + '[model]\nname = "Qwen/Qwen3-0.6B"\n'
    fault = next(fault for fault in faults(text) if fault.key == ("model", "name"))
    assert fault.patch == {"model.name": None, "model.path": "Qwen/Qwen3-0.6B"}


def test_a_table_of_another_program_is_not_moved_to_a_key() -> None:
    """pyproject.toml has [project], and [prime_train.wandb] a key of that name."""
    fault = next(fault for fault in faults('[project]\nname = "x"\n') if fault.key == ("project",))
    assert not fault.patch
    assert fault.fix.startswith("take it out")
