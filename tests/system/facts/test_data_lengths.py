from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prime_train.facts import data_lengths
from prime_train.facts.data_lengths import lengths, local_data, named_paths, try_chats
from prime_train.facts.facts import ChatTrial, DataLengths, NotKnown
from prime_train.facts.files import named_data
from prime_train.facts.find_files import FileSearch
from prime_train.rules.explain import BASE, BASES
from prime_train.rules.judge import lint
from prime_train.spec import Data, Eval, EvalSet, RunSpec, Source, Tokenizer
from prime_train.spec.answers import prime_rl_of, replace_parts
from prime_train.spec.prime_rl_parts import Environments, EnvironmentSource, Finetune
from tests.fakes.model_folder import STEADY, WITHOUT_TOOLS
from tests.unit.trainer.chats.chats import write_folder


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that takes longer than its budget ends without a number, which a busy machine would show."""
    monkeypatch.setattr(data_lengths, "BUDGET_S", 60.0)


def run_of(text: str) -> RunSpec:
    run = lint(text, "run.toml").run
    assert run is not None
    return run


NATIVE, RL, SFT = (run_of(text) for text in (BASE, BASES["prime-rl 2026-08"], BASES["prime-rl 2026-08 sft"]))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with a token for each word."""
    from tokenizers import Tokenizer as Made
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    made = Made(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    return folder


def rows_in(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def one(found: tuple[DataLengths, ...] | NotKnown) -> DataLengths:
    assert not isinstance(found, NotKnown), found.reason
    (only,) = found
    return only


def native(path: Path, tokenizer: Path | None = None) -> RunSpec:
    source = Source(kind="files", path=str(path))
    return replace(
        NATIVE, data=Data(sources=(source,)), tokenizer=Tokenizer(path=str(tokenizer) if tokenizer else None)
    )


def test_rows_and_their_tokens(tmp_path: Path, tokenizer: Path) -> None:
    file = rows_in(tmp_path / "a.jsonl", {"text": "one two three"}, {"text": "one"}, {"other": "nothing to read"})
    found = one(lengths(native(file, tokenizer), sys.executable))
    assert (found.field, found.rows, found.measured_rows) == ("data.sources.0.path", 3, 2)
    assert (found.longest_tokens, found.mean_tokens, found.problem) == (3, 2.0, "")


def test_a_folder_of_several_kinds(tmp_path: Path, tokenizer: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows_in(tmp_path / "a.jsonl", {"text": "one two"})
    (tmp_path / "b.txt").write_text("one two three four")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one"] * 5}), tmp_path / "c.parquet")
    found = one(lengths(native(tmp_path, tokenizer), sys.executable))
    assert (found.rows, found.measured_rows, found.longest_tokens) == (7, 7, 4)


def test_without_a_tokenizer_rows_are_counted_all_the_same(tmp_path: Path) -> None:
    found = one(lengths(native(rows_in(tmp_path / "a.jsonl", {"text": "one"})), sys.executable))
    assert (found.rows, found.longest_tokens) == (1, None)


def test_what_cannot_be_read_has_the_reason(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{not json\n")
    assert "JSONDecodeError" in one(lengths(native(tmp_path / "a.jsonl", tokenizer), sys.executable)).problem
    (tmp_path / "tokenizer.json").write_text("{}")
    rows_in(tmp_path / "b.jsonl", {"text": "one"})
    found = one(lengths(native(tmp_path / "b.jsonl", tmp_path), sys.executable))
    assert found.rows == 1
    assert "tokenizer.json" in found.problem


def test_the_prompts_of_an_environment(tmp_path: Path, tokenizer: Path) -> None:
    parts = prime_rl_of(RL)
    asked = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one two three"}]
    file = rows_in(tmp_path / "tasks.jsonl", {"prompt": asked, "answer": "a b c d e f g"}, {"question": "one"})
    assert parts.trainer is not None
    for arguments, where in (
        ({"dataset_name": str(file)}, "args.dataset_name"),
        ({"taskset": {"dataset_path": str(file)}}, "args.taskset.dataset_path"),
    ):
        run = replace_parts(
            RL,
            trainer=parts.trainer._replace(tokenizer_name=str(tokenizer)),
            environments=Environments(train=(EnvironmentSource(id="mine", args=arguments),)),
        )
        found = one(lengths(run, sys.executable))
        assert (found.field, found.longest_tokens) == (f"environments.train.0.{where}", 5)


def test_data_that_is_not_on_this_machine_is_not_asked_for() -> None:
    hub = EnvironmentSource(id="mine", args={"dataset_name": "PrimeIntellect/Reverse-Text-RL"})
    assert list(local_data(replace_parts(RL, environments=Environments(train=(hub,))))) == []
    assert list(local_data(SFT)) == []
    assert list(local_data(NATIVE)) == []
    assert lengths(NATIVE, "/no/such/python") == ()


def test_fine_tuning_data_of_a_folder(tmp_path: Path) -> None:
    rows_in(tmp_path / "train.jsonl", *({"messages": []} for _ in range(3)))
    found = one(lengths(replace_parts(SFT, finetune=Finetune(data_name=str(tmp_path))), sys.executable))
    assert (found.field, found.rows) == ("finetune.data_name", 3)


def test_an_interpreter_that_does_not_answer(tmp_path: Path) -> None:
    run = native(rows_in(tmp_path / "a.jsonl", {"text": "one"}))
    assert isinstance(lengths(run, "/no/such/python"), NotKnown)
    assert isinstance(lengths(run, "/bin/false"), NotKnown)
    assert isinstance(lengths(run, sys.executable, deadline_s=0.001), NotKnown)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"text": "a"}\n{"text": \n', "record 2 cannot be read"),
        ('{"text": "a"}\n["b"]\n', "record 2 is no object"),
        ('{"prompt": "a"}\n', "record 1 has no text in 'text'; it has 'prompt'"),
    ],
)
def test_the_first_records_are_opened(tmp_path: Path, content: str, fault: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(content)
    run = replace(NATIVE, data=Data(sources=(Source(kind="files", path=str(file)),)))
    found = lengths(run, sys.executable)
    assert not isinstance(found, NotKnown)
    assert fault in found[0].broken


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("b.jsonl", b'{"text": \n', "b.jsonl: record 1 cannot be read"),
        ("b.jsonl", b'{"prompt": "a"}\n', "b.jsonl: record 1 has no text in 'text'; it has 'prompt'"),
        ("b.jsonl", b'{"text": "a"}\n' * 50 + b"{\n", "b.jsonl: record 51 cannot be read"),
        ("b.txt", "gr\u00fc\u00dfe".encode("latin-1"), "b.txt: record 1 cannot be read: 'utf-8' codec"),
        ("b.txt", b"fine", ""),
        ("b.csv", b"{", ""),
    ],
)
def test_what_a_glob_names_is_opened(tmp_path: Path, name: str, content: bytes, fault: str) -> None:
    rows_in(tmp_path / "a.jsonl", {"text": "one"})
    (tmp_path / name).write_bytes(content)
    found = one(lengths(native(tmp_path / "*.*"), sys.executable))
    assert fault in found.broken
    assert bool(found.broken) == bool(fault)


def test_a_pipe_that_a_glob_names_is_not_opened(tmp_path: Path) -> None:
    rows_in(tmp_path / "a.jsonl", {"text": "one"})
    os.mkfifo(tmp_path / "b.jsonl")
    assert one(lengths(native(tmp_path / "*.jsonl"), sys.executable)).rows == 1


def test_a_glob_that_matches_nothing_has_no_lengths(tmp_path: Path) -> None:
    assert lengths(native(tmp_path / "*.jsonl"), sys.executable) == ()


def test_the_sources_of_a_measured_set_are_opened(tmp_path: Path) -> None:
    good, bad = rows_in(tmp_path / "a.jsonl", {"text": "one"}), rows_in(tmp_path / "b.jsonl", {"words": "one"})
    measured = Eval(sets=(EvalSet(name="b", sources=(Source(kind="files", path=str(bad)),)),))
    found = lengths(replace(native(good), eval=measured), sys.executable)
    assert not isinstance(found, NotKnown)
    assert [(each.field, bool(each.broken)) for each in found] == [
        ("data.sources.0.path", False),
        ("eval.sets.0.sources.0.path", True),
    ]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"messages": [{"role": "user", "content": "one two"}]}, ""),
        ({"prompt": "one two", "completion": "one"}, ""),
        ({"text": "one"}, "record 1 has no text in 'messages' or 'prompt'; it has 'text'"),
    ],
)
def test_the_records_of_a_fine_tuning_are_chats(
    tmp_path: Path, tokenizer: Path, row: dict[str, object], fault: str
) -> None:
    run = native(rows_in(tmp_path / "chats.jsonl", row), tokenizer)
    found = one(lengths(replace(run, run=replace(run.run, kind="sft")), sys.executable))
    assert fault in found.broken
    assert bool(found.broken) == bool(fault)
    assert found.longest_tokens == (None if fault else 2)


def test_the_headers_of_tokens_are_read(tmp_path: Path) -> None:
    for name, content in (("good", bytes(1024)), ("cut", bytes(1023))):
        begin = np.array([20240520, 1, 0], "<i4").tobytes()
        (tmp_path / f"{name}.bin").write_bytes(begin + content[len(begin) :])
    np.save(tmp_path / "real.npy", np.zeros(4))
    found = lengths(replace(NATIVE, data=Data(sources=tuple(tokens_at(tmp_path)))), sys.executable)
    assert not isinstance(found, NotKnown)
    assert [each.broken.removeprefix(f"{tmp_path}/") for each in found] == [
        "",
        "cut.bin: it has 1023 bytes, and the header of a .bin has 1024",
        "real.npy: its elements are float64; tokens are one row of unsigned integers",
    ]


def tokens_at(folder: Path) -> Iterator[Source]:
    for pattern in ("good.bin", "c*.bin", "*.npy"):
        yield Source(kind="tokens", path=str(folder / pattern))


def test_paths_that_no_hub_has_are_named(tmp_path: Path) -> None:
    parts = prime_rl_of(SFT)
    assert parts.finetune is not None
    for name, is_named in (("./chats", True), ("/data/chats.jsonl", True), ("owner/chats", False), ("a/b.jsonl", True)):
        run = replace_parts(SFT, finetune=parts.finetune._replace(data_name=name))
        assert bool(list(named_paths(run))) is is_named
    gone = str(tmp_path / "gone")
    (found,) = named_data([("finetune.data_name", gone)], FileSearch())
    assert (found.field, found.problem) == ("finetune.data_name", "there is no such file or folder")


# --- chats ---------------------------------------------------------------------------------------


def tuning(data: Path, tokenizer: Path, messages_field: str = "messages") -> RunSpec:
    source = Source(kind="files", path=str(data), messages_field=messages_field)
    kind = replace(NATIVE.run, kind="sft")
    return replace(NATIVE, run=kind, data=Data(sources=(source,)), tokenizer=Tokenizer(path=str(tokenizer)))


def chat(number: int, **answer: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": str(number)}, {"role": "assistant", "content": "a", **answer}]}


def try_one(run: RunSpec) -> ChatTrial:
    tried = try_chats(run, sys.executable)
    assert not isinstance(tried, NotKnown), tried.reason
    (only,) = tried
    return only


CALL = {"content": "", "tool_calls": [{"function": {"name": "now", "arguments": {}}}]}


def test_the_first_chats_are_read_as_the_trainer_reads_them(tmp_path: Path) -> None:
    good = write_folder(tmp_path / "good", STEADY)
    file = rows_in(tmp_path / "a.jsonl", *map(chat, range(20)), chat(20, **CALL))
    found = try_one(tuning(file, good))
    assert (found.chats, found.is_whole, found.what) == (21, True, "")
    assert found.learned_train + found.learned_held_out == 21
    bad = write_folder(tmp_path / "bad", WITHOUT_TOOLS)
    found = try_one(tuning(file, bad))
    assert (found.chats, found.what) == (20, "the chat template writes nothing of the call of now in message 2")
    assert found.where == f'{file}: record 21 with tokenizer.path = "{bad}": tokenizer_config.json'
    assert "empty answer" in found.why
    assert "use a template that writes tools" in found.fix


@pytest.mark.parametrize(
    ("template", "row", "what"),
    [
        (STEADY, {"messages": [{"role": "human", "content": "a"}]}, 'it is no chat: messages[0].role is "human"'),
        ("{{ raise_exception('no') }}", chat(1), "the chat template refuses a chat: TemplateError: no"),
        (None, chat(1), "it has no chat template"),
    ],
)
def test_a_chat_that_the_trainer_refuses(
    template: str | None, row: dict[str, object], what: str, tmp_path: Path
) -> None:
    run = tuning(rows_in(tmp_path / "a.jsonl", row), write_folder(tmp_path / "folder", template))
    found = try_one(run)
    assert (found.chats, found.what) == (0, what)


def test_chats_that_are_all_cut_before_the_answer(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", STEADY)
    long = {"messages": [{"role": "user", "content": "a" * 100}, {"role": "assistant", "content": "b"}]}
    rows_in(tmp_path / "a.jsonl", *[long] * 5)
    rows_in(tmp_path / "b.jsonl", *[long] * 5)
    (tmp_path / "notes.txt").write_text("no chat")
    run = tuning(tmp_path / "*", folder)
    found = try_one(replace(run, data=replace(run.data, ctx_tokens=64)))
    assert (found.chats, found.is_whole, found.learned_train, found.learned_held_out) == (10, True, 0, 0)
    assert found.least_ctx_tokens is not None
    enough = try_one(replace(run, data=replace(run.data, ctx_tokens=found.least_ctx_tokens)))
    assert (enough.learned_train, enough.learned_held_out) == (9, 1)
    short = try_one(replace(run, data=replace(run.data, ctx_tokens=found.least_ctx_tokens - 1)))
    assert (short.learned_train, short.learned_held_out) == (0, 0)


def test_data_that_cannot_be_read_is_no_fault_of_its_chats(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", STEADY)
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(chat(1))}\n{{\n")
    assert try_one(tuning(tmp_path / "a.jsonl", folder)) == ChatTrial("data.sources.0.path", 1)
    assert try_chats(NATIVE, sys.executable) == ()
    trained = replace(tuning(tmp_path / "a.jsonl", folder), tokenizer=Tokenizer())
    assert try_chats(trained, sys.executable) == ()
    assert isinstance(try_chats(tuning(tmp_path / "a.jsonl", folder), "/no/such/python"), NotKnown)


def test_a_template_without_an_end_is_ended(tmp_path: Path) -> None:
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    run = tuning(rows_in(tmp_path / "a.jsonl", chat(1)), write_folder(tmp_path / "folder", loops))
    assert isinstance(try_chats(run, sys.executable, deadline_s=3.0), NotKnown)


def test_a_template_that_takes_all_memory_is_ended(tmp_path: Path) -> None:
    large = "{% set a = 'a' * 10000000000 %}{% for m in messages %}{{ m.content }}{% endfor %}"
    run = tuning(rows_in(tmp_path / "a.jsonl", chat(1)), write_folder(tmp_path / "folder", large))
    assert isinstance(try_chats(run, sys.executable), NotKnown)
