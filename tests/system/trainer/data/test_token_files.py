"""Sources of ready-made tokens: which documents they have, and what is refused."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.spec import EvalSet, RunSpec
from prime_train.trainer.data import sources, token_files
from prime_train.trainer.data.corpus import DocumentStart, StartedDocuments, open_corpora
from prime_train.trainer.data.stream import TrainStream, held_out_batches, prepare
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from prime_train.trainer.data.token_files import TokenFiles, open_token_files
from prime_train.trainer.evaluation.eval_sets import open_sets, refuse_same_documents, refuse_same_files
from prime_train.trainer.tokenizer import LoadedTokenizer
from tests.system.trainer.data.test_stream import same, take, through_json
from tests.unit.trainer.data.small_runs import files, small_run, text
from tests.unit.trainer.data.token_sources import tokens_at, write_bin, write_npy

EOS = 9


def tokenizer(vocab_size: int = 60_000, eos_id: int = EOS) -> LoadedTokenizer:
    return LoadedTokenizer(
        encode_batch=lambda _: [],
        decode=lambda _: "",
        vocab_size=vocab_size,
        eos_id=eos_id,
        files=(),
        fingerprint=f"{vocab_size} {eos_id}",
    )


def opened(path: Path, of: LoadedTokenizer, ratio: float | None = 0.1) -> TokenFiles:
    source = tokens_at(path)
    return open_token_files(sources.locate(source), sources.token_files(source)[1], of, ratio)[0]


def documents(found: TokenFiles) -> list[list[int]]:
    every = np.arange(found.count)
    lengths = found.lengths(every)
    return [piece.tolist() for piece in found.pieces(every, np.zeros_like(lengths), lengths)]


def fault(path: Path, of: LoadedTokenizer) -> UserError:
    with pytest.raises(UserError) as caught:
        opened(path, of)
    assert all((caught.value.what, caught.value.where, caught.value.why, caught.value.fix))
    return caught.value


@pytest.mark.parametrize("stream", [[EOS, 1, 2, EOS, 3], [1, 2, EOS, 3, EOS], [EOS, EOS, 1, 2, EOS, EOS, 3, EOS, EOS]])
def test_documents_stand_between_end_of_text_tokens(tmp_path: Path, stream: list[int]) -> None:
    """Before each document, as in llm.c, or after it; empty ones are none."""
    found = opened(write_npy(tmp_path / "a.npy", stream), tokenizer())
    assert documents(found) == [[1, 2, EOS], [3, EOS]]


STREAMS = st.lists(st.lists(st.sampled_from([*range(8), EOS, EOS]), max_size=30), min_size=1, max_size=4)


@settings(deadline=None, max_examples=30)
@given(
    streams=STREAMS.filter(lambda streams: any(set(stream) - {EOS} for stream in streams)),
    kinds=st.lists(st.sampled_from(["bin", "u1", "<u2", ">u4", "<u8"]), min_size=4, max_size=4),
    data=st.data(),
)
def test_any_files_are_split_as_a_list_is(
    tmp_path_factory: pytest.TempPathFactory, streams: list[list[int]], kinds: list[str], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    expected: list[list[int]] = []
    for number, (stream, kind) in enumerate(zip(streams, kinds, strict=False)):
        path = folder / f"{number}.{'bin' if kind == 'bin' else 'npy'}"
        _ = write_bin(path, stream) if kind == "bin" else write_npy(path, stream, kind)
        places = [-1, *(at for at, token in enumerate(stream) if token == EOS), len(stream)]
        split = (stream[start + 1 : stop] for start, stop in pairwise(places))
        expected += [[*document, EOS] for document in split if document]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_files, "AT_ONCE", 7)
        patch.setattr(token_files, "OPEN_FILES", 1)
        found = opened(folder, tokenizer(), None)
        assert documents(found) == expected
    every = np.arange(found.count)
    lengths = found.lengths(every)
    starts = np.asarray([data.draw(st.integers(0, length - 1)) for length in lengths.tolist()])
    wanted = np.asarray([data.draw(st.integers(0, left)) for left in (lengths - starts).tolist()])
    pieces = [piece.tolist() for piece in found.pieces(every, starts, wanted)]
    assert pieces == [
        document[start : start + count]
        for document, start, count in zip(expected, starts.tolist(), wanted.tolist(), strict=True)
    ]


def test_llama_3_files_have_another_token_between_documents(tmp_path: Path) -> None:
    path = write_bin(tmp_path / "a.bin", [128000, 5, 6, 128000, 7], magic=20240801)
    assert documents(opened(path, tokenizer(128_256, 128_001))) == [[5, 6, 128_001], [7, 128_001]]


def test_a_single_document_is_cut_and_its_end_is_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "SECTION_TOKENS", 30)
    stream = [number % 8 for number in range(100)]
    found = opened(write_npy(tmp_path / "a.npy", stream), tokenizer())
    sections = documents(found)
    assert [len(section) for section in sections] == [30, 30, 30, 11]
    assert (found.held_out, [token for section in sections for token in section]) == (1, [*stream, EOS])


def test_a_single_document_that_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    assert "too short to split: 3 tokens" in fault(write_npy(tmp_path / "a.npy", [1, 2, 3]), tokenizer()).what


def test_files_without_a_token_of_text_are_refused(tmp_path: Path) -> None:
    assert fault(write_npy(tmp_path / "a.npy", [EOS, EOS]), tokenizer()).what == "it contains no text"
    (tmp_path / "empty").mkdir()
    write_bin(tmp_path / "empty" / "a.bin", [])
    assert fault(tmp_path / "empty", tokenizer()).what == "it contains no text"


def test_a_folder_without_such_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    found = fault(tmp_path, tokenizer())
    assert found.what == "no .bin, .npy file matches; found .txt"
    assert "kind tokens" in found.why


def test_tokens_beyond_the_vocabulary_are_refused_with_the_file(tmp_path: Path) -> None:
    write_npy(tmp_path / "a.npy", [1, 2, EOS, 3])
    write_npy(tmp_path / "b.npy", [1, 500, EOS, 3])
    found = fault(tmp_path, tokenizer(vocab_size=500))
    assert "it has token 500, and the vocabulary of the tokenizer has 500" in found.what
    assert found.where == str(tmp_path / "b.npy")
    assert found.fix.startswith("tokenizer.path")
    assert opened(tmp_path, tokenizer(vocab_size=501)).count == 4


@pytest.mark.parametrize(
    ("magic", "end", "of"), [(20240520, 50_256, "GPT-2"), (20240801, 128_000, "Llama 3")], ids=["gpt-2", "llama-3"]
)
def test_the_documents_of_a_known_tokenizer_are_refused_for_another(
    tmp_path: Path, magic: int, end: int, of: str
) -> None:
    path = write_bin(tmp_path / "a.bin", [end, 1, 2, end, 3], magic)
    assert f"divided by token {end}, as those of a tokenizer of {of}" in fault(path, tokenizer(200_000, EOS)).what


def test_the_header_alone_names_no_tokenizer(tmp_path: Path) -> None:
    """Others write the format with tokenizers of their own."""
    path = write_bin(tmp_path / "a.bin", [EOS, 1, 2, EOS, 3])
    assert opened(path, tokenizer()).count == 2


def test_many_tokens_without_an_end_of_text_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_npy(tmp_path / "a.npy", [1, 2, 3, 4, 5, 6])
    assert opened(path, tokenizer()).count == 2, "a single document, in two sections"
    monkeypatch.setattr(token_files, "LONGEST_TOKENS", 5)
    assert "token 9, the end of a text, is not among 6 tokens" in fault(path, tokenizer()).what


def test_a_file_that_was_cut_after_the_start_is_named(tmp_path: Path) -> None:
    path = write_npy(tmp_path / "a.npy", [EOS, *range(8), EOS, *range(8)])
    found = opened(path, tokenizer())
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="it ends before token 18 of 18") as caught:
        documents(found)
    assert caught.value.where == str(path)


def test_no_file_is_copied_into_memory(tmp_path: Path) -> None:
    array = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", dtype=np.uint16, shape=(2**26,))  # 128 MiB
    array[::1000] = EOS
    array.flush()
    tracemalloc.start()
    found = opened(tmp_path / "a.npy", tokenizer())
    found.pieces(np.arange(1000), np.zeros(1000, dtype=np.int64), found.lengths(np.arange(1000)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.count == 67_109
    assert peak_bytes < 40 * 2**20


# --- as sources of a run ---------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> tuple[RunSpec, RunSpec]:
    """Two runs over the same documents: as text, and as tokens in three shards that llm.c and numpy might write."""
    folder = tmp_path / "texts"
    folder.mkdir()
    texts = [text(number, (1, 3, 8, 20, 90)[number % 5]) for number in range(40)]
    for number, one in enumerate(texts):
        (folder / f"{number:04d}.txt").write_text(one, encoding="utf-8")
    trained = small_run(files(folder))
    of = load_tokenizer(trained)
    tokens = of.encode_batch(texts)
    (tmp_path / "shards").mkdir()
    write_bin(tmp_path / "shards" / "a.bin", [token for one in tokens[:15] for token in (of.eos_id, *one)])
    write_npy(tmp_path / "shards" / "b.npy", [token for one in tokens[15:30] for token in (*one, of.eos_id)], "<u4")
    write_npy(tmp_path / "shards" / "c.npy", [token for one in tokens[30:] for token in (of.eos_id, *one)])
    read = replace(trained, tokenizer=spec.Tokenizer(path=str(of.files[0].parent)))
    shards = tokens_at(tmp_path / "shards")
    return read, replace(read, data=replace(read.data, sources=(shards,)))


@pytest.mark.parametrize("start", ["none", "eos"])
def test_the_rows_are_those_of_the_text(pair: tuple[RunSpec, RunSpec], start: DocumentStart) -> None:
    as_text, as_tokens = (replace(run, data=replace(run.data, document_start=start)) for run in pair)
    of = prepare(as_text)
    assert same(
        take(TrainStream(as_text, of, 0, 1, None), 40), take(TrainStream(as_tokens, prepare(as_tokens), 0, 1, None), 40)
    )
    assert same(held_out_batches(as_text, of), held_out_batches(as_tokens, of))


def test_a_run_over_tokens_resumes_and_knows_its_files_by_their_content(
    pair: tuple[RunSpec, RunSpec], tmp_path: Path
) -> None:
    _, run = pair
    of = prepare(run)
    straight = take(TrainStream(run, of, 0, 1, None), 30)
    stream = TrainStream(run, of, 0, 1, None)
    take(stream, 10)
    position = through_json(stream.position())
    for path in (tmp_path / "shards").iterdir():
        path.rename(path.with_name(f"renamed-{path.name}"))
    ranks = [TrainStream(run, of, rank, 2, position) for rank in (0, 1)]
    assert same([one.next_micro_batch() for _ in range(10) for one in ranks], straight[10:])
    other = tmp_path / "shards" / "renamed-b.npy"
    changed = np.load(other)
    changed[3] = 1 + changed[3] % 200
    np.save(other, changed)
    with pytest.raises(UserError, match="the text or the tokenizer has changed"):
        TrainStream(run, of, 0, 1, position)


def test_the_files_are_read_through_once(pair: tuple[RunSpec, RunSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    _, run = pair
    of = prepare(run)
    monkeypatch.setattr(token_files, "_read_through", None)
    assert len(open_corpora(run, of)[0].train) == 36


def test_tokens_and_text_are_mixed_by_tokens(pair: tuple[RunSpec, RunSpec]) -> None:
    as_text, as_tokens = pair
    mixed = replace(as_text.data, sources=as_text.data.sources + as_tokens.data.sources, sampling_probs=(0.25, 0.75))
    run = replace(as_text, data=replace(mixed, sampling_unit="tokens"))
    stream = TrainStream(run, prepare(run), 0, 1, None)
    take(stream, 150)
    of_text, of_tokens = stream.position()["tokens"]
    assert abs(of_text / (of_text + of_tokens) - 0.25) < 0.03


def test_no_tokenizer_is_trained_on_tokens(pair: tuple[RunSpec, RunSpec]) -> None:
    _, run = pair
    with pytest.raises(UserError, match="its files have tokens, and no text") as caught:
        load_tokenizer(replace(run, tokenizer=spec.Tokenizer()))
    assert caught.value.fix.startswith("tokenizer.path")


def test_a_set_of_tokens_is_measured_and_compared_with_the_training_data(
    pair: tuple[RunSpec, RunSpec], tmp_path: Path
) -> None:
    as_text, as_tokens = pair
    of = load_tokenizer(as_text)
    (tmp_path / "set").mkdir()
    tokens = of.encode_batch([text(1000 + number, 60) for number in range(5)])
    write_npy(tmp_path / "set" / "d.npy", [token for one in tokens for token in (of.eos_id, *one)])
    asked = EvalSet(name="other", sources=(tokens_at(tmp_path / "set"),), tokens=200)
    run = replace(as_tokens, eval=replace(as_tokens.eval, sets=(asked,)))
    (measured,) = open_sets(run, of)
    assert measured.size_bytes > 0
    refuse_same_files(run)
    refuse_same_documents(run, of)
    (tmp_path / "set" / "d.npy").write_bytes((tmp_path / "shards" / "b.npy").read_bytes())
    with pytest.raises(UserError, match=r"d\.npy is in data\.sources too"):
        refuse_same_files(run)
    with pytest.raises(UserError, match="of its documents are training documents too"):
        refuse_same_documents(run, of)


def test_a_single_document_of_tokens_begins_once(tmp_path: Path) -> None:
    path = write_npy(tmp_path / "a.npy", [number % 8 for number in range(40_000)])
    found = StartedDocuments(opened(path, tokenizer()), EOS, is_cut=True)
    every = np.arange(3)
    assert [piece[0] == EOS for piece in found.pieces(every, np.zeros(3, dtype=np.int64), found.lengths(every))] == [
        True,
        False,
        False,
    ]
