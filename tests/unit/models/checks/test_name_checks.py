"""The names of tensors against those that the architecture needs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.models.checks.name_checks import find_name_fault
from prime_train.models.read.config import ModelConfigFile, read_config
from prime_train.models.read.model_files import Weights
from prime_train.models.read.safetensors_header import TensorHeader, summarise
from prime_train.models.verdict.verdicts import Outcome
from prime_train.registry.gpus import read_table
from prime_train.registry.tensor_names import tensor_names
from tests.fakes.model_folder import QWEN3, tensors_of
from tests.unit.models.known_models import FILES, check, evidence, verdict

TENSORS = tensors_of(QWEN3)
TYPES = sorted(name for entry in read_table("tensor_names.toml")["names"] for name in entry["types"])


def config_of(**changed: Any) -> ModelConfigFile:
    found = read_config(json.dumps(QWEN3 | changed), "mine")
    assert isinstance(found, ModelConfigFile)
    return found


def weights_of(names: list[str]) -> Weights:
    return summarise([TensorHeader(tuple((name, "BF16", (2, 2)) for name in names), 0)])


def stored_names(model_type: str, blocks: int = 2) -> list[str]:
    """Names as a folder of that type has them."""
    names = tensor_names(model_type)
    assert names is not None
    whole = [f"{module}.weight".replace("*", str(block)) for module in names.modules() for block in range(blocks)]
    return [*dict.fromkeys(whole), f"{names.root}{names.embedding}.weight", f"{names.head}.weight"]


@pytest.mark.parametrize("model_type", TYPES)
def test_names_as_the_architecture_needs_them_have_no_fault(model_type: str) -> None:
    assert find_name_fault(weights_of(stored_names(model_type)), config_of(model_type=model_type)) is None


@given(st.sampled_from(TYPES), st.sampled_from(["model.", "transformer.", "module.", "base_model."]))
def test_a_doubled_or_a_strange_root_is_found(model_type: str, prefix: str) -> None:
    names = [f"{prefix}{name}" for name in stored_names(model_type)]
    fault = find_name_fault(weights_of(names), config_of(model_type=model_type))
    assert fault is not None
    assert not fault.base_only
    assert fault.missing in fault.what
    assert fault.found in names or "*" in fault.found


@given(st.sampled_from(TYPES), st.data())
def test_each_module_that_is_renamed_is_found(model_type: str, data: st.DataObject) -> None:
    names = stored_names(model_type)
    renamed = data.draw(st.sampled_from([name for name in names if "embed" not in name and "wte" not in name]))
    block = renamed.replace(".0.", ".1.")
    others = [f"{name}_" if name in (renamed, block, block.replace(".1.", ".0.")) else name for name in names]
    others = [name.replace(".weight_", "_.weight") for name in others]
    if renamed.startswith(("lm_head", "embed_out")):
        return  # without a head the embedding may be tied to it
    assert find_name_fault(weights_of(others), config_of(model_type=model_type)) is not None


def test_a_missing_root_is_a_fault_of_serving_alone() -> None:
    """transformers adds the root of its base model, and vLLM refuses the name."""
    bare = {name.removeprefix("model."): shape for name, shape in TENSORS.items()}
    header = TensorHeader(tuple((name, "BF16", shape) for name, shape in bare.items()), 0)
    found = verdict(evidence(files=FILES._replace(weights=summarise([header]))))
    by_id = {each.id: each for each in found.checks}
    assert by_id["vllm"].outcome is Outcome.FAILURE
    assert "model.layers.*.self_attn.q_proj.weight is missing" in by_id["vllm"].what
    assert "layers.*.self_attn.q_proj.weight is there instead" in by_id["vllm"].what
    assert by_id["weights"].outcome is Outcome.OK
    assert {use.id: use.outcome for use in found.uses}["rl"] is Outcome.FAILURE


def test_a_doubled_root_is_refused() -> None:
    header = TensorHeader(tuple((f"model.{name}", "BF16", shape) for name, shape in TENSORS.items()), 0)
    found = check(evidence(files=FILES._replace(weights=summarise([header]))), "weights")
    assert found.outcome is Outcome.FAILURE
    assert "model.model.layers.*.self_attn.q_proj.weight is there instead" in found.what


def test_gpt2_is_published_without_its_root() -> None:
    bare = [name.removeprefix("transformer.") for name in stored_names("gpt2")]
    assert find_name_fault(weights_of(bare), config_of(model_type="gpt2")) is None


def test_names_that_are_not_known_are_not_compared() -> None:
    strange = weights_of(["a.b.weight"])
    assert find_name_fault(strange, config_of(model_type="unheard_of")) is None
    assert find_name_fault(strange, config_of(vision_config={"depth": 1})) is None
