"""Hugging Face folders: logits equal to transformers' both ways, and a named reason for what is refused."""

import errno
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from prime_train.core.errors import ExitCode, UserError
from prime_train.trainer.failure import cause_class, describe
from prime_train.trainer.model import hf
from prime_train.trainer.model import hf as hf_config
from prime_train.trainer.model.decoder import Decoder, build
from tests.unit.trainer import tiny

TOKENS = torch.randint(0, 97, (2, 23), generator=torch.Generator().manual_seed(0))
POSITIONS = torch.arange(23).expand(2, 23)
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def theirs(family: str, **changes: Any) -> Any:
    """A random transformers model whose weights are large enough for attention to matter."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )  # takes seconds: not in every worker

    torch.manual_seed(0)
    if family == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**(SIZES | {"num_key_value_heads": 2} | changes)))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**(SIZES | {"num_key_value_heads": 2, "head_dim": 16} | changes)))
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(1.0 if weight.ndim < 2 else 0.0, 0.2)
    return model.eval()


def their_logits(model: Any) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(TOKENS).logits
    return logits


def transformers_loads(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def our_logits(model: Decoder) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(TOKENS, POSITIONS, None)
    return logits


def loaded(folder: Path) -> Decoder:
    model = build(hf_config.read_config(folder), seed=99)
    hf.load_weights(model, folder)
    return model


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    theirs("llama").save_pretrained(folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | changes))


def edit_weights(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-3}),
        ("llama", {"num_key_value_heads": 1, "head_dim": 12}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        ("qwen3", {}),
        ("qwen3", {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    ],
)
@pytest.mark.parametrize("shards", [1, 4])
def test_logits_equal_transformers_both_ways(family: str, changes: dict[str, Any], shards: int, tmp_path: Path) -> None:
    reference = theirs(family, **changes)
    size = sum(weight.numel() * 4 for weight in reference.parameters())
    reference.save_pretrained(tmp_path / "theirs", max_shard_size=size // shards + 1024)
    assert ((tmp_path / "theirs" / "model.safetensors.index.json").exists()) == (shards > 1)
    ours = loaded(tmp_path / "theirs")
    torch.testing.assert_close(our_logits(ours), their_logits(reference), rtol=0, atol=1e-5)

    tiny.save_hf(tmp_path / "ours", ours.config, ours.state_dict(), hf_config.Export(ctx_tokens=64))
    back = transformers_loads(tmp_path / "ours")
    assert type(back) is type(reference)
    torch.testing.assert_close(their_logits(back), our_logits(ours), rtol=0, atol=1e-5)
    assert hf_config.read_config(tmp_path / "ours") == ours.config
    assert all(
        torch.equal(a, b) for a, b in zip(loaded(tmp_path / "ours").parameters(), ours.parameters(), strict=True)
    )


def test_half_precision_weights_are_read_as_fp32(tmp_path: Path) -> None:
    reference = theirs("llama").to(torch.bfloat16)
    reference.save_pretrained(tmp_path / "theirs")
    ours = loaded(tmp_path / "theirs")
    assert {weight.dtype for weight in ours.parameters()} == {torch.float32}
    back = transformers_loads(tmp_path / "theirs")
    torch.testing.assert_close(our_logits(ours), their_logits(back), rtol=0, atol=1e-5)


def test_the_flat_spelling_of_transformers_4_is_read(llama: Path) -> None:
    raw = json.loads((llama / "config.json").read_text())
    del raw["rope_parameters"]
    (llama / "config.json").write_text(json.dumps(raw | {"rope_theta": 500000.0, "rope_scaling": None}))
    assert hf_config.read_config(llama).rope_theta == 500000.0


def test_the_tokenizer_and_the_stop_token_go_with_the_model(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<end>": 2}, unk_token="a"))
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(tmp_path / "tokenizer")
    model = loaded_random(tmp_path)
    export = hf_config.Export(ctx_tokens=64, stop_token=2, tokenizer_files=tuple((tmp_path / "tokenizer").iterdir()))
    tiny.save_hf(tmp_path / "ours", model.config, model.state_dict(), export)
    assert AutoTokenizer.from_pretrained(tmp_path / "ours").eos_token_id == 2
    back = transformers_loads(tmp_path / "ours")
    assert back.config.eos_token_id == 2
    assert back.config.max_position_embeddings == 64


def loaded_random(tmp_path: Path) -> Decoder:
    theirs("llama").save_pretrained(tmp_path / "random")
    return loaded(tmp_path / "random")


def test_saving_replaces_a_folder_and_leaves_nothing_beside(tmp_path: Path) -> None:
    model = loaded_random(tmp_path)
    for killed in (".final.partial", ".final.replaced"):
        (tmp_path / "out" / killed).mkdir(parents=True)
        (tmp_path / "out" / killed / "model.safetensors").touch()
    for _ in range(2):
        tiny.save_hf(tmp_path / "out" / "final", model.config, model.state_dict(), hf_config.Export(ctx_tokens=64))
    assert sorted(os.listdir(tmp_path / "out")) == ["final"]
    assert sorted(os.listdir(tmp_path / "out" / "final")) == ["config.json", "model.safetensors"]


def test_a_save_that_fails_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    model = loaded_random(tmp_path)
    tiny.save_hf(tmp_path / "out" / "final", model.config, model.state_dict(), hf_config.Export(ctx_tokens=64))
    before = (tmp_path / "out" / "final" / "model.safetensors").read_bytes()
    weights = dict(model.state_dict())
    del weights["norm.weight"]
    with pytest.raises(KeyError):
        tiny.save_hf(tmp_path / "out" / "final", model.config, weights, hf_config.Export(ctx_tokens=64))
    assert (tmp_path / "out" / "final" / "model.safetensors").read_bytes() == before
    assert os.listdir(tmp_path / "out") == ["final"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, 'model_type = "mamba"'),
        ({"model_type": None}, "model_type = null"),
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu"'),
        ({"attention_bias": True}, "attention_bias = true"),
        ({"mlp_bias": True}, "mlp_bias = true"),
        ({"use_sliding_window": True}, "use_sliding_window = true"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, 'rope_type = "llama3"'),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, 'rope_type = "linear"'),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_hidden_layers": "two"}, 'num_hidden_layers = "two"'),
        ({"vocab_size": 0}, "vocab_size = 0"),
        ({"model_type": ["llama"]}, 'model_type = ["llama"]'),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads = 3 does not divide"),
        ({"head_dim": 7}, "head_dim = 7 is odd"),
        ({"tie_word_embeddings": "false"}, 'tie_word_embeddings = "false"'),
        ({"rms_norm_eps": "1e-6"}, 'rms_norm_eps = "1e-6"'),
        ({"rms_norm_eps": -1}, "rms_norm_eps = -1"),
        ({"rope_parameters": "default"}, 'rope_parameters = "default"'),
        ({"rope_parameters": {"rope_theta": True}}, "rope_theta = true"),
    ],
)
def test_what_the_decoder_does_not_compute_is_refused_by_name(llama: Path, changes: dict[str, Any], named: str) -> None:
    edit_config(llama, **changes)
    with pytest.raises(UserError) as refused:
        hf_config.read_config(llama)
    assert named in refused.value.what
    assert refused.value.where == str(llama / "config.json")
    assert describe(refused.value, 1, 0)[1] is ExitCode.RUN_FAILED
    assert refused.value.why
    assert refused.value.fix


def test_a_missing_size_is_named(llama: Path) -> None:
    raw = json.loads((llama / "config.json").read_text())
    del raw["hidden_size"]
    (llama / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match="hidden_size is missing"):
        hf_config.read_config(llama)


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def garble_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def list_config(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (shutil.rmtree, "cannot be read"),
        (remove_config, "No such file"),
        (garble_config, "not JSON"),
        (list_config, "not a JSON object"),
    ],
)
def test_a_folder_without_a_readable_config_is_refused(
    llama: Path, damage: Callable[[Path], object], named: str
) -> None:
    damage(llama)
    with pytest.raises(UserError, match=named):
        hf_config.read_config(llama)


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 100)


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def drop_tensor(folder: Path) -> None:
    edit_weights(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))


def reshape_tensor(folder: Path) -> None:
    edit_weights(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)}))


def integer_tensor(folder: Path) -> None:
    edit_weights(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}))


def add_tensor(folder: Path) -> None:
    edit_weights(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}))


def index_a_missing_shard(folder: Path) -> None:
    names = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = dict.fromkeys(names, "model-00001-of-00002.safetensors")
    shards["lm_head.weight"] = "model-00002-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def index_a_file_outside(folder: Path) -> None:
    index_a_missing_shard(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00002", "../model-00002"))


@pytest.mark.parametrize(
    ("damage", "where", "named"),
    [
        (truncate, "model.safetensors", "cannot be read"),
        (remove_weights, "model.safetensors", "is missing"),
        (drop_tensor, "", "1 tensor missing, first model.layers.1.mlp.up_proj.weight"),
        (reshape_tensor, "model.safetensors", "model.norm.weight is torch.float32 [31], expected floats [32]"),
        (integer_tensor, "model.safetensors", "model.norm.weight is torch.int8 [32]"),
        (add_tensor, "", "1 tensor without a place, first model.layers.0.self_attn.q_proj.bias"),
        (index_a_missing_shard, "model-00002-of-00002.safetensors", "is missing"),
        (index_a_file_outside, "model.safetensors.index.json", "it leads out of the folder"),
    ],
)
def test_damaged_weights_are_refused_by_name(
    llama: Path, damage: Callable[[Path], object], where: str, named: str
) -> None:
    model = build(hf_config.read_config(llama), seed=0)
    damage(llama)
    with pytest.raises(UserError) as refused:
        hf.load_weights(model, llama)
    assert named in refused.value.what
    assert refused.value.where == str(llama / where)
    assert describe(refused.value, 1, 0)[1] is ExitCode.RUN_FAILED


def test_implied_tensors_are_passed_over(tmp_path: Path) -> None:
    reference = theirs("llama", tie_word_embeddings=True)
    reference.save_pretrained(tmp_path)
    head = reference.model.embed_tokens.weight.detach().clone()
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    edit_weights(tmp_path, lambda tensors: tensors.update(frequencies | {"lm_head.weight": head}))
    torch.testing.assert_close(our_logits(loaded(tmp_path)), their_logits(reference), rtol=0, atol=1e-5)


def test_a_full_disk_is_an_os_error_with_its_number(tmp_path: Path) -> None:
    """A file-size limit stands for the full disk: the kernel refuses the write just so."""
    model = loaded_random(tmp_path)
    out = tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 * 1024, hard))
    try:
        with pytest.raises(OSError, match="cannot write") as failed:
            tiny.save_hf(out / "final", model.config, model.state_dict(), hf_config.Export(ctx_tokens=64))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failed.value.errno == errno.EFBIG
    assert cause_class(failed.value) == "disk"
    assert os.listdir(out) == []
