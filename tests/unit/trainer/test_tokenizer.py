from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.spec import RunSpec
from prime_train.trainer import draws
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from prime_train.trainer.tokenizer import EOS, LoadedTokenizer
from tests.unit.trainer.data.small_runs import files, small_run, write_texts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    return small_run(files(write_texts(tmp_path_factory.mktemp("data") / "texts", 30)))


@pytest.fixture(scope="module")
def trained(run: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> LoadedTokenizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIME_TRAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load_tokenizer(run)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))


def with_path(run: RunSpec, path: Path) -> RunSpec:
    return replace(run, tokenizer=spec.Tokenizer(path=str(path)))


def copy(tokenizer: LoadedTokenizer, folder: Path) -> Path:
    folder.mkdir()
    for file in tokenizer.files:
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@settings(deadline=None)
@given(st.text())
def test_decoding_gives_back_any_text(trained: LoadedTokenizer, text: str) -> None:
    assert trained.decode(trained.encode(text)) == text


@settings(deadline=None)
@given(st.lists(st.text(max_size=20), max_size=5))
def test_a_batch_is_encoded_as_its_texts_are(trained: LoadedTokenizer, texts: list[str]) -> None:
    assert trained.encode_batch(texts) == [trained.encode(text) for text in texts]


def test_text_that_looks_like_the_end_of_text_is_text(trained: LoadedTokenizer) -> None:
    tokens = trained.encode(f"a{EOS}b")
    assert trained.eos_id not in tokens
    assert trained.decode(tokens) == f"a{EOS}b"
    assert trained.decode([*tokens, trained.eos_id]) == f"a{EOS}b"


def test_the_vocabulary_is_as_large_as_asked(trained: LoadedTokenizer) -> None:
    assert trained.vocab_size == 300
    assert 0 <= trained.eos_id < 300


def test_training_twice_gives_the_same_files(
    run: RunSpec, trained: LoadedTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / name))
        again = load_tokenizer(run)
        assert again.fingerprint == trained.fingerprint
        assert again.files[0].parent != trained.files[0].parent


def test_it_is_trained_once(run: RunSpec, capfd: pytest.CaptureFixture[str]) -> None:
    load_tokenizer(run)
    assert "training a tokenizer" in capfd.readouterr().err
    load_tokenizer(run)
    assert capfd.readouterr().err == ""


def test_held_out_text_has_no_part_in_it(run: RunSpec, trained: LoadedTokenizer) -> None:
    path = run.data.sources[0].path
    assert path is not None
    _, held_out = draws.split(30, run.eval.held_out_ratio, run.run.seed, 0)
    texts = sorted(Path(path).iterdir())
    before = {number: texts[number].read_text(encoding="utf-8") for number in held_out.tolist()}
    try:
        for number in before:
            texts[number].write_text("zzzz" * 5000)
        assert load_tokenizer(run).fingerprint == trained.fingerprint
    finally:
        for number, text in before.items():
            texts[number].write_text(text, encoding="utf-8")


def test_transformers_reads_the_folder_and_agrees(trained: LoadedTokenizer) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(trained.files[0].parent))
    text = "def f(x):\n    return größe  # 日本"
    assert loaded.encode(text, add_special_tokens=False) == trained.encode(text)
    assert loaded.decode(trained.encode(text)) == text
    assert loaded.eos_token_id == trained.eos_id
    assert len(loaded) == trained.vocab_size


def test_a_folder_with_tokenizer_json(run: RunSpec, trained: LoadedTokenizer, tmp_path: Path) -> None:
    folder = copy(trained, tmp_path / "folder")
    loaded = load_tokenizer(with_path(run, folder))
    assert loaded.encode("alpha beta") == trained.encode("alpha beta")
    assert loaded.eos_id == trained.eos_id
    assert {file.name for file in loaded.files} == {"tokenizer.json", "tokenizer_config.json"}


def test_a_folder_that_only_transformers_can_read(run: RunSpec, tmp_path: Path) -> None:
    words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "hello", "world", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    config = {"tokenizer_class": "BertTokenizer", "eos_token": "[SEP]", "model_max_length": 4}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = load_tokenizer(with_path(run, tmp_path))
    assert loaded.encode_batch(["hello worlds hello world", ""]) == [[5, 6, 7, 5, 6], []]
    assert loaded.decode([5, 6, 2]) == "hello world"
    assert (loaded.vocab_size, loaded.eos_id) == (8, 2)


def test_a_folder_that_is_not_there(run: RunSpec, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        load_tokenizer(with_path(run, tmp_path / "missing"))


@pytest.mark.parametrize("content", ["", "{}", '{"model": '])
def test_a_broken_tokenizer_json(run: RunSpec, tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match="cannot be read"):
        load_tokenizer(with_path(run, tmp_path))


def test_an_empty_folder(run: RunSpec, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        load_tokenizer(with_path(run, tmp_path / "empty"))


def test_a_broken_config_beside_a_good_tokenizer(run: RunSpec, trained: LoadedTokenizer, tmp_path: Path) -> None:
    folder = copy(trained, tmp_path / "folder")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError) as caught:
        load_tokenizer(with_path(run, folder))
    assert "tokenizer_config.json" in caught.value.where


def test_a_tokenizer_without_an_end_of_text(run: RunSpec, trained: LoadedTokenizer, tmp_path: Path) -> None:
    folder = copy(trained, tmp_path / "folder")
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match="no end-of-text token"):
        load_tokenizer(with_path(run, folder))
    (folder / "config.json").write_text('{"eos_token_id": [0, 5]}')
    assert load_tokenizer(with_path(run, folder)).eos_id == 0
