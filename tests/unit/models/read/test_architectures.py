"""What packages know is read out of their source, in each of the ways that they have written it."""

from __future__ import annotations

import sys
from pathlib import Path

from prime_train.facts.facts import NotKnown
from prime_train.models.read.architectures import InstalledPackages, read_installed
from prime_train.models.read.architectures_program import (
    prime_rl_models,
    read_support,
    transformers_types,
    vllm_tool_parsers,
)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_architectures_of_vllm(tmp_path: Path) -> None:
    write(
        tmp_path / "model_executor" / "models" / "registry.py",
        '_TEXT_GENERATION_MODELS = {"A": ("a", "A")}\n_MULTIMODAL_MODELS: dict = {"B": ("b", "B")}\n'
        '_VLLM_MODELS = {**_TEXT_GENERATION_MODELS}\n_PREVIOUSLY_SUPPORTED_MODELS = {"C": "0.9.2"}\n'
        '_OOT_SUPPORTED_MODELS = {"D": "elsewhere"}\n',
    )
    known = read_support({"vllm": str(tmp_path)})["vllm"]
    assert known == {"architectures": ["A", "B"], "gone": {"C": "0.9.2"}, "tool_parsers": []}


def test_tool_parsers_in_a_table_and_by_decorator(tmp_path: Path) -> None:
    write(
        tmp_path / "tool_parsers" / "__init__.py",
        '_TOOL_PARSERS_TO_REGISTER = {"hermes": ("a", "b"), "xlam": ("c", "d")}',
    )
    write(
        tmp_path / "entrypoints" / "openai" / "tool_parsers" / "llama.py",
        '@ToolParserManager.register_module(["llama3_json", "llama4_json"])\nclass A: ...\n'
        '@ToolParserManager.register_module("mistral")\nclass B: ...\n',
    )
    assert vllm_tool_parsers(str(tmp_path)) == ["hermes", "llama3_json", "llama4_json", "mistral", "xlam"]


def test_model_types_of_transformers(tmp_path: Path) -> None:
    auto = tmp_path / "models" / "auto"
    write(auto / "configuration_auto.py", 'CONFIG_MAPPING_NAMES = OrderedDict[str, str]([("qwen3", "Qwen3Config")])')
    assert transformers_types(str(tmp_path)) == {"qwen3": "Qwen3Config"}
    write(auto / "auto_mappings.py", 'CONFIG_MAPPING_NAMES = OrderedDict([("llama", "LlamaConfig")])')
    assert set(transformers_types(str(tmp_path))) == {"qwen3", "llama"}


def test_models_of_prime_rl(tmp_path: Path) -> None:
    text = (
        'AutoConfig.register("afmoe", AfmoeConfig, exist_ok=True)\nAutoConfig.register("other", OtherConfig)\n'
        "_CUSTOM_CAUSAL_LM_MAPPING.register(LlamaConfig, X)\n_register_custom_causal_lm(AfmoeConfig, Y)\n"
    )
    write(tmp_path / "trainer" / "models" / "__init__.py", text)
    write(tmp_path / "utils" / "vlm.py", 'VLM_REGISTRY: dict[str, Info] = {"qwen3_vl": Info(a="b")}')
    said = prime_rl_models(str(tmp_path), {"llama": "LlamaConfig", "qwen2": "Qwen2Config"})
    assert said == {"model_types": ["afmoe", "llama"], "vision_types": ["qwen3_vl"], "takes_others": True}
    write(tmp_path / "trainer" / "model.py", 'raise ValueError("x has no PrimeRL model implementation.")')
    assert prime_rl_models(str(tmp_path), {})["takes_others"] is False


def test_source_that_is_not_there_or_not_python(tmp_path: Path) -> None:
    write(tmp_path / "model_executor" / "models" / "registry.py", "_TEXT_MODELS = {")
    assert read_support({"vllm": str(tmp_path), "transformers": str(tmp_path), "prime_rl": str(tmp_path)}) == {
        "vllm": {"architectures": [], "gone": {}, "tool_parsers": []},
        "transformers": {"model_types": []},
        "prime_rl": {"model_types": [], "vision_types": [], "takes_others": True},
    }


def test_this_interpreter() -> None:
    found = read_installed(sys.executable)
    assert isinstance(found, InstalledPackages), found
    if found.has_transformers:
        assert {"llama", "qwen3"} <= found.transformers_types


def test_an_interpreter_that_is_none() -> None:
    assert isinstance(read_installed("/no/such/python"), NotKnown)
    assert isinstance(read_installed("/bin/true"), NotKnown)
