"""Chats of every kind of source become labelled documents; faults name the row."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.environments.environment import Task
from prime_train.environments.load import open_environment
from prime_train.spec import Eval, Run, RunSpec, Source, Tokenizer
from prime_train.spec.rl import TaskSource
from prime_train.trainer import draws
from prime_train.trainer.batch import IGNORED, MicroBatch
from prime_train.trainer.chats import chat_sources
from prime_train.trainer.chats.chat import Chat
from prime_train.trainer.chats.chat_sources import locate_chats, open_chat_corpora
from prime_train.trainer.chats.chat_tokenizer import count_learned, load_chat_tokenizer, try_chats
from prime_train.trainer.chats.demonstrations import demonstrate
from prime_train.trainer.data.stream import TrainStream, held_out_batches
from tests.fakes.model_folder import STEADY
from tests.unit.trainer.chats.chats import LLAMA_3, PHI, TEMPLATES, chat_run, write_family, write_folder

REVERSE = TaskSource(kind="reverse-text", arguments={"min_letters": 3, "max_letters": 5})


def row(number: int, words: int = 3) -> dict[str, Any]:
    answer = " ".join(["yes"] * words)
    return {"messages": [{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": answer}]}


def write_rows(file: Path, rows: list[Any]) -> Source:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in rows)
    file.write_text(text, encoding="utf-8")
    return Source(kind="files", path=str(file))


def test_a_device_among_the_files_is_not_read(tmp_path: Path) -> None:
    """A device or a pipe may never end."""
    file = tmp_path / "chats.jsonl"
    file.symlink_to("/dev/null")
    source = Source(kind="files", path=str(file))
    with pytest.raises(UserError, match="a device"):
        locate_chats(chat_run(source), source).open()


def learned(batch: MicroBatch) -> list[int]:
    """The labels that count."""
    return batch.labels[batch.labels != IGNORED].tolist()


def prompts(run: RunSpec, source: Source) -> list[str]:
    chats = locate_chats(run, source).open()
    read = [chats.read(index) for index in range(chats.count)]
    return [chat.messages[0].content for chat in read if isinstance(chat, Chat)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "folder of both", "dataset"])
def test_every_kind_of_source_has_its_chats(kind: str, tmp_path: Path) -> None:
    rows = [row(number) for number in range(6)]
    table = datasets.Dataset.from_list(rows)
    source = write_rows(tmp_path / "a" / "a.jsonl", rows)
    match kind:
        case "parquet":
            table.to_parquet(str(tmp_path / "b.parquet"))
            source = Source(kind="files", path=str(tmp_path / "b.parquet"))
        case "folder of both":
            write_rows(tmp_path / "a" / "a.jsonl", ["", *rows[:4], "  "])
            datasets.Dataset.from_list(rows[4:]).to_parquet(str(tmp_path / "a" / "b.parquet"))
            source = Source(kind="files", path=str(tmp_path / "a"))
        case "dataset":
            datasets.DatasetDict(train=table).save_to_disk(str(tmp_path / "d"))
            source = Source(kind="hf-dataset", path=str(tmp_path / "d"))
    assert prompts(chat_run(source), source) == [f"q{number}" for number in range(6)]


def test_the_field_with_the_messages_has_any_name(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"chat": row(number)["messages"]} for number in range(3)])
    run = chat_run(source)
    assert prompts(run, replace(source, messages_field="chat")) == ["q0", "q1", "q2"]
    with pytest.raises(UserError, match=r"a.jsonl:1: it is no chat: it has no field \"messages\"") as caught:
        prompts(run, source)
    assert "one of 3 rows" in caught.value.why


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "no line of JSON"),
        ("[" * 3000, "no line of JSON"),
        ('"text"', "a text, not an object"),
        (b"\xff\xfe".decode("latin-1"), "no line of JSON"),
        (row(1) | {"messages": [{"role": "human", "content": "a"}]}, "did you mean user"),
    ],
)
def test_a_fault_names_file_and_line(line: Any, what: str, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [row(0), "", line, row(2)])
    with pytest.raises(UserError, match=what) as caught:
        open_chat_corpora(chat_run(source), load_chat_tokenizer(chat_run(source)))
    assert caught.value.where == f"{tmp_path / 'a.jsonl'}:3"


def test_a_row_that_the_template_refuses_is_named(tmp_path: Path) -> None:
    refuses = "{% if messages[0].content == 'q1' %}{{ raise_exception('no q1') }}{% endif %}"
    folder = write_folder(tmp_path / "folder", refuses + STEADY)
    source = write_rows(tmp_path / "a.jsonl", [row(0), row(1)])
    run = chat_run(source, tokenizer=Tokenizer(path=str(folder)))
    with pytest.raises(UserError, match="no q1") as caught:
        open_chat_corpora(run, load_chat_tokenizer(run))
    assert caught.value.where.startswith(f"{tmp_path / 'a.jsonl'}:2 with tokenizer.path")


CALL = {"function": {"name": "now", "arguments": {"zone": "UTC"}}}
RESULT = {"role": "tool", "content": "12:00", "tool_call_id": "a", "name": "now"}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def with_parts(*parts: str) -> dict[str, Any]:
    """A row with a call, its result and its tool, or only some of them."""
    found = row(1)
    first, answer = found["messages"]
    call = {"role": "assistant", "content": "", "tool_calls": [CALL]} if "call" in parts else answer
    found["messages"] = [first, call, *([RESULT, answer] if "result" in parts else [])]
    return found | ({"tools": [NOW]} if "tool" in parts else {})


@pytest.mark.parametrize(
    ("template", "parts", "lost"),
    [
        (LLAMA_3, ("call",), "the call of now in message 2"),
        (PHI, ("call", "result", "tool"), "the call of now in message 2, the result in message 3, the tool now"),
        (PHI, ("result",), "the result in message 3"),
        (LLAMA_3, ("tool",), "the tool now"),
    ],
)
def test_what_the_template_leaves_out_is_refused_with_its_row(
    template: str, parts: tuple[str, ...], lost: str, tmp_path: Path
) -> None:
    """An empty answer in the place of a call is learned as the right answer, and nothing shows it."""
    folder = write_folder(tmp_path / "folder", template)
    source = write_rows(tmp_path / "a.jsonl", [row(0), with_parts(*parts), row(2)])
    run = chat_run(source, tokenizer=Tokenizer(path=str(folder)))
    with pytest.raises(UserError) as caught:
        open_chat_corpora(run, load_chat_tokenizer(run))
    assert caught.value.where == f'{tmp_path / "a.jsonl"}:2 with tokenizer.path = "{folder}": tokenizer_config.json'
    assert caught.value.what == f"the chat template writes nothing of {lost}"
    assert ("into content" in caught.value.fix) is ("call" in parts)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_of_tools_loses_none(name: str, tmp_path: Path) -> None:
    folder = write_family(tmp_path / "folder", name)
    rows = [with_parts("call", "result", "tool"), with_parts("call"), with_parts("call", "tool"), row(0)]
    run = chat_run(write_rows(tmp_path / "a.jsonl", rows), tokenizer=Tokenizer(path=str(folder)))
    (corpus,) = open_chat_corpora(run, load_chat_tokenizer(run))
    assert len(corpus.train) + len(corpus.held_out) >= 1


def test_a_call_that_only_some_chats_lose_is_found(tmp_path: Path) -> None:
    """A template that writes a call only where there is no text beside it."""
    template = STEADY.replace("message.tool_calls or []", "([] if message.content else message.tool_calls or [])")
    assert template != STEADY
    both = with_parts("call")
    both["messages"][1] = both["messages"][1] | {"content": "I look."}
    source = write_rows(tmp_path / "a.jsonl", [with_parts("call"), both])
    run = chat_run(source, tokenizer=Tokenizer(path=str(write_folder(tmp_path / "folder", template))))
    with pytest.raises(UserError, match="the call of now in message 2") as caught:
        open_chat_corpora(run, load_chat_tokenizer(run))
    assert caught.value.where.startswith(f"{tmp_path / 'a.jsonl'}:2 ")


def test_a_line_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sources, "MAX_LINE_BYTES", 500)
    source = write_rows(tmp_path / "a.jsonl", [row(0), row(1, words=500)])
    with pytest.raises(UserError, match="the line has more than") as caught:
        prompts(chat_run(source), source)
    assert caught.value.where.endswith("a.jsonl:2")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (Source(kind="python-stdlib"), "has no chats"),
        (Source(kind="demonstrations"), "no tasks to demonstrate"),
        (Source(kind="files", path="gone.jsonl"), "no .jsonl, .parquet file matches"),
        (Source(kind="files"), "path is not set"),
    ],
)
def test_a_source_without_chats(source: Source, what: str) -> None:
    with pytest.raises(UserError, match=what):
        locate_chats(chat_run(source), source)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([], "it has no chats"),
        ([row(1)], "only one chat"),
        ([{"messages": [{"role": "user", "content": "a"}]}] * 3, "none of its 3 chats has a token to learn"),
    ],
)
def test_too_little_to_learn(rows: list[Any], what: str, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", rows)
    run = chat_run(source)
    with pytest.raises(UserError, match=what):
        open_chat_corpora(run, load_chat_tokenizer(run))


def test_a_long_chat_keeps_its_beginning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = {
        "messages": [{"role": "user", "content": " ".join(map(str, range(200)))}, {"role": "assistant", "content": "a"}]
    }
    source = write_rows(tmp_path / "a.jsonl", [row(0), row(1, words=300), lost, row(3)])
    run = chat_run(source)
    (corpus,) = open_chat_corpora(run, load_chat_tokenizer(run))
    documents = np.sort(np.concatenate([corpus.train, corpus.held_out]))
    _, lengths = corpus.gather(documents)
    assert len(lengths) == 3
    assert lengths[1] == 64
    assert "1 documents are cut to 64 tokens, 1 of 4 chats are left out" in capsys.readouterr().err


def asks(letters: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "q" * letters}, {"role": "assistant", "content": "a"}]}


@pytest.mark.parametrize("part", ["held-out", "training"])
def test_a_part_without_answers_in_the_context_is_refused_with_a_reason(part: str, tmp_path: Path) -> None:
    train, held_out = draws.split(20, 0.1, 7, 0)
    cut = set((held_out if part == "held-out" else train).tolist())
    source = write_rows(tmp_path / "a.jsonl", [asks(200 if number in cut else 2) for number in range(20)])
    run = chat_run(source, tokenizer=Tokenizer(path=str(write_folder(tmp_path / "folder", STEADY))))
    with pytest.raises(UserError) as caught:
        open_chat_corpora(run, load_chat_tokenizer(run))
    assert caught.value.what == f"none of the {part} chats has a token to learn"
    assert caught.value.where == "data.ctx_tokens = 64"
    assert "the first 64 of a chat" in caught.value.why
    assert "raise data.ctx_tokens" in caught.value.fix


@given(letters=st.lists(st.integers(1, 60), min_size=2, max_size=12), ratio=st.sampled_from([0.01, 0.3, 0.6]))
def test_what_a_trial_counts_is_what_the_trainer_has(
    letters: list[int], ratio: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("chats")
    rows = list(map(asks, letters))
    source = write_rows(folder / "a.jsonl", rows)
    tokenizer = Tokenizer(path=str(write_folder(folder / "folder", STEADY)))
    run = chat_run(source, tokenizer=tokenizer, eval=Eval(held_out_ratio=ratio))
    contexts, refusal = try_chats(str(tokenizer.path), "messages", [("", each) for each in rows], math.inf)
    assert not refusal
    counted = count_learned(contexts, run.data.ctx_tokens, ratio, run.run.seed, 0)
    learned = counted["learned_train"], counted["learned_held_out"]
    if not all(learned):
        with pytest.raises(UserError, match="has a token to learn"):
            open_chat_corpora(run, load_chat_tokenizer(run))
        enough = counted["least_ctx_tokens"]
        assert enough is not None
        run = replace(run, data=replace(run.data, ctx_tokens=enough))
        recounted = count_learned(contexts, enough, ratio, run.run.seed, 0)
        learned = recounted["learned_train"], recounted["learned_held_out"]
    (corpus,) = open_chat_corpora(run, load_chat_tokenizer(run))
    assert (len(corpus.train), len(corpus.held_out)) == learned
    assert held_out_batches(run, load_chat_tokenizer(run).tokenizer, (corpus,))


def test_only_answers_are_labels(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [row(number) for number in range(20)])
    run = chat_run(source)
    chat_tokenizer = load_chat_tokenizer(run)
    tokenizer = chat_tokenizer.tokenizer
    corpora = open_chat_corpora(run, chat_tokenizer)
    answer = [*tokenizer.encode("yes yes yes"), tokenizer.eos_id]
    stream = TrainStream(run, tokenizer, 0, 1, None, corpora)
    for batch in [stream.next_micro_batch(), *held_out_batches(run, tokenizer, corpora)]:
        labels = learned(batch)
        assert labels == answer * (len(labels) // len(answer))
        assert labels
        assert int(batch.tokens.min()) >= 0


def test_the_same_rows_for_any_number_of_ranks_and_after_a_resume(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [row(number, words=number % 9 + 1) for number in range(60)])
    run = chat_run(source)
    chat_tokenizer = load_chat_tokenizer(run)

    def take(
        rank: int, ranks: int, position: dict[str, Any] | None, count: int
    ) -> tuple[list[MicroBatch], dict[str, Any]]:
        stream = TrainStream(
            run, chat_tokenizer.tokenizer, rank, ranks, position, open_chat_corpora(run, chat_tokenizer)
        )
        return [stream.next_micro_batch() for _ in range(count)], stream.position()

    straight, _ = take(0, 1, None, 12)
    _, halfway = take(0, 1, None, 6)
    resumed, _ = take(0, 1, halfway, 6)
    assert all(map(same, straight[6:], resumed))
    even, odd = (take(rank, 2, None, 6)[0] for rank in (0, 1))
    assert all(map(same, straight[::2], even))
    assert all(map(same, straight[1::2], odd))


def same(one: MicroBatch, other: MicroBatch) -> bool:
    return bool((one.tokens == other.tokens).all() and (one.labels == other.labels).all())


def test_held_out_chats_are_not_trained_on(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [row(number) for number in range(50)])
    run = chat_run(source)
    (corpus,) = open_chat_corpora(run, load_chat_tokenizer(run))
    assert len(corpus.held_out) == 5
    assert not set(corpus.train) & set(corpus.held_out)


def test_demonstrations_are_solved_tasks_in_turns() -> None:
    source = Source(kind="demonstrations", count=5)
    run = chat_run(source, tasks=(REVERSE, TaskSource(kind="calculator")))
    chats = locate_chats(run, source).open()
    assert chats.count == 5
    assert [chats.where(index) for index in range(3)] == [
        "reverse-text, task 0",
        "calculator, task 0",
        "reverse-text, task 1",
    ]
    first, second = chats.read(0), chats.read(1)
    assert isinstance(first, Chat)
    assert isinstance(second, Chat)
    assert first.messages[-1].content == first.messages[0].content.split()[-1][::-1]
    assert second.tools
    assert [message.role for message in second.messages] == ["user", "assistant", "tool", "assistant"]


class Few:
    """Three tasks, which it cannot show solved."""

    name = "few"
    size = 3

    def __init__(self) -> None:
        self.asked = open_environment(REVERSE, 1)

    def task(self, split: Any, number: int) -> Task:
        return self.asked.task(split, number)

    def demonstrate(self, _task: Task) -> None:
        return

    def respond(self, task: Task, messages: Any) -> Any:
        return self.asked.respond(task, messages)

    def score(self, task: Task, messages: Any) -> float:
        return self.asked.score(task, messages)

    def close(self) -> None:
        self.asked.close()


def test_an_environment_that_shows_no_solved_task() -> None:
    with pytest.raises(UserError, match="few does not show"):
        demonstrate([Few()], 10, prompts_suffice=False)
    assert demonstrate([Few()], 10, prompts_suffice=True).count == 3


def test_other_tasks_make_another_tokenizer_and_corpus(cache: Path) -> None:
    source = Source(kind="demonstrations", count=30)
    for letters in (3, 4, 3):
        task = replace(REVERSE, arguments={"min_letters": 2, "max_letters": letters})
        run = chat_run(source, tasks=(task,))
        open_chat_corpora(run, load_chat_tokenizer(run))
    assert len([path for path in (cache / "tokens").iterdir() if path.is_dir()]) == 2


def test_the_tokenizer_is_not_trained_on_held_out_chats(tmp_path: Path) -> None:
    """With another file of the same training chats, the tokenizer is the same."""
    rows = [row(number) for number in range(40)]
    source = write_rows(tmp_path / "a.jsonl", rows)
    run = chat_run(source)
    tokenizer = load_chat_tokenizer(run)
    (corpus,) = open_chat_corpora(run, tokenizer)
    for held_out in corpus.held_out.tolist():
        rows[held_out] = row(held_out, words=9)
    write_rows(tmp_path / "a.jsonl", rows)
    shutil.rmtree(tmp_path / "cache")
    assert load_chat_tokenizer(run).tokenizer.fingerprint == tokenizer.tokenizer.fingerprint


def test_a_run_of_rewards_needs_no_source() -> None:
    run = replace(chat_run(tasks=(REVERSE,)), run=Run(name="r", kind="rl", max_steps=1))
    assert load_chat_tokenizer(run).tokenizer.vocab_size <= 300
