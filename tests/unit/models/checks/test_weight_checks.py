"""Weights against config.json and against each other, on folders with the tensors of a small Qwen3."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.models.checks.weight_checks import find_unused, find_weight_faults
from prime_train.models.read.config import ModelConfigFile, read_config
from prime_train.models.read.model_files import Weights, from_json, to_json
from prime_train.models.read.read_folder import read_folder
from prime_train.models.read.safetensors_header import TensorHeader, summarise
from prime_train.models.verdict.verdicts import Outcome
from tests.fakes.model_folder import QWEN3, header, tensors_of, write_model, write_weights
from tests.unit.models.known_models import evidence, verdict

TENSORS = tensors_of(QWEN3)


def config_of(**changed: Any) -> ModelConfigFile:
    found = read_config(json.dumps(QWEN3 | changed), "mine")
    assert isinstance(found, ModelConfigFile)
    return found


def weights_of(tensors: dict[str, tuple[int, ...]], dtype: str = "BF16") -> Weights:
    return summarise([TensorHeader(tuple((name, dtype, shape) for name, shape in tensors.items()), 0)])


def first_fault(tensors: dict[str, tuple[int, ...]], **changed: Any) -> str:
    return next((fault.what for fault in find_weight_faults(weights_of(tensors), config_of(**changed))), "")


def test_a_whole_model_has_no_fault() -> None:
    assert first_fault(TENSORS) == ""
    assert find_unused(weights_of(TENSORS), config_of()) == ""


@given(st.sampled_from(sorted(TENSORS)))
@settings(max_examples=30, deadline=None)
def test_every_tensor_that_is_missing_is_found(name: str) -> None:
    assert first_fault({key: shape for key, shape in TENSORS.items() if key != name})


@given(st.sampled_from(sorted(TENSORS)), st.integers(0, 1), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_every_tensor_of_another_size_is_found_or_named_as_unused(name: str, axis: int, more: int) -> None:
    shape = list(TENSORS[name])
    shape[axis % len(shape)] += more
    changed = {**TENSORS, name: tuple(shape)}
    assert first_fault(changed) or find_unused(weights_of(changed), config_of())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vocab_size": 300}, "vocab_size = 300"),
        ({"vocab_size": 400}, "vocab_size = 400"),
        ({"tie_word_embeddings": False}, "there is no lm_head.weight"),
        ({"num_hidden_layers": 1}, "num_hidden_layers = 1"),
        ({"num_attention_heads": 8}, "q_proj"),
        ({"intermediate_size": 96}, "gate_proj"),
    ],
)
def test_a_config_of_another_model(changed: dict[str, Any], said: str) -> None:
    assert said in first_fault(TENSORS, **changed)


def test_a_message_names_the_tensor_and_a_block_that_has_it() -> None:
    lacking = {key: shape for key, shape in TENSORS.items() if key != "model.layers.1.mlp.up_proj.weight"}
    assert first_fault(lacking) == "model.layers.1.mlp.up_proj.weight is missing: block 0 has it"


def test_blocks_for_further_tokens_may_follow_the_last_one() -> None:
    block = {name.replace("layers.0", "layers.2"): shape for name, shape in TENSORS.items() if "layers.0" in name}
    assert "num_hidden_layers = 2" in first_fault(TENSORS | block)
    assert first_fault(TENSORS | block, num_nextn_predict_layers=1) == ""
    assert first_fault(TENSORS | block | {"model.layers.2.eh_proj.weight": (32, 64)}) == ""


def test_wrappers_integers_and_quantised_weights() -> None:
    assert "_orig_mod." in first_fault({f"_orig_mod.{name}": shape for name, shape in TENSORS.items()})
    whole = config_of()
    assert any("I8" in fault.what for fault in find_weight_faults(weights_of(TENSORS, "I8"), whole))
    quantised = config_of(quantization_config={"quant_method": "gptq", "bits": 4})
    assert list(find_weight_faults(weights_of(TENSORS, "I32"), quantised)) == []


def test_an_unknown_family_is_judged_only_by_what_holds_for_all() -> None:
    assert first_fault(TENSORS | {"model.layers.0.extra.weight": (8, 8)}, model_type="mine") == ""
    assert "vocab_size" in first_fault(TENSORS, model_type="mine", vocab_size=300)


def test_tensors_with_too_many_names_are_not_judged() -> None:
    found = weights_of({f"part{number}.weight": (1,) for number in range(3000)})
    assert found.groups == ()
    assert found.stored == 3000


def folder_with_head(folder: Path, different: bool) -> Path:
    write_model(folder)
    tensors = TENSORS | {"lm_head.weight": TENSORS["model.embed_tokens.weight"]}
    path = folder / "model.safetensors"
    write_weights(path, tensors)
    if different:
        head_bytes = 2 * math.prod(tensors["lm_head.weight"])
        with open(path, "r+b") as file:
            file.seek(-head_bytes, 2)
            file.write(b"\x01" * head_bytes)
    return folder


def test_a_tied_model_with_another_head(tmp_path: Path) -> None:
    for different, outcome in ((True, Outcome.FAILURE), (False, Outcome.OK)):
        files = read_folder("mine", "folder", folder_with_head(tmp_path / str(different), different))
        (found,) = [check for check in verdict(evidence(files=files)).checks if check.id == "weights"]
        assert found.outcome is outcome, found
        assert files.weights is not None
        assert files.weights.head_differs is different


def test_an_index_that_names_an_absent_tensor_and_a_missing_shard_make_a_folder_unusable(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    weight_map = dict.fromkeys(TENSORS, "one.safetensors")
    for change, said in (
        ({"model.head.weight": "one.safetensors"}, "does not have it"),
        ({"x": "two.safetensors"}, "missing"),
    ):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map | change}))
        found = verdict(evidence(files=read_folder("mine", "folder", folder)))
        (check,) = [check for check in found.checks if check.id == "weights"]
        assert check.outcome is Outcome.FAILURE
        assert said in check.what
        assert not found.usable


def test_a_folder_without_weights_can_still_be_pretrained(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    (folder / "model.safetensors").unlink()
    found = verdict(evidence(files=read_folder("mine", "folder", folder)))
    assert found.usable
    assert {use.id: use.outcome for use in found.uses}["sft"] is Outcome.FAILURE


def test_a_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    files = read_folder("mine", "folder", folder)
    assert files.weights is not None
    assert "git lfs pull" in files.weights.faults[0]


def test_data_with_a_hole_is_refused_as_safetensors_does(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    start, size = header(TENSORS)
    table = json.loads(start[8:])
    del table["model.layers.0.mlp.up_proj.weight"]
    text = json.dumps(table).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    files = read_folder("mine", "folder", folder)
    assert files.weights is not None
    assert "the tensor before it ends at" in files.weights.faults[0]


def test_the_groups_survive_the_way_through_json(tmp_path: Path) -> None:
    files = read_folder("mine", "folder", write_model(tmp_path / "mine"))
    assert from_json(json.loads(json.dumps(to_json(files)))) == files
