"""A run.toml on audio: its keys, what is refused in it, and what may change between attempts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prime_train.config import run_toml
from prime_train.config.parsed_config import NOT_A_CHOICE, UNKNOWN_KEY
from prime_train.programs.fixed_settings import list_changes
from prime_train.spec import RunSpec, from_json, to_json
from prime_train.spec.audio import Audio, AudioEncoder
from prime_train.spec.clip_size import flops_per_clip, size_of

BASE = """\
[run]
name = "birds"
kind = "audio"
max_steps = 100
[[data.sources]]
kind = "chirps"
"""


def read(text: str) -> RunSpec:
    reading = run_toml.read(text, "birds.toml")
    assert reading.faults == ()
    assert reading.run is not None
    return reading.run


def test_what_is_not_written_has_its_default_and_a_clip_is_a_sequence() -> None:
    run = read(BASE)
    assert run.audio == Audio()
    assert run.data.ctx_tokens == 32 * 8 + 4
    assert from_json(to_json(run)) == run
    hidden = read(BASE + '[audio]\nobjective = "masked_autoencoder"\n')
    assert hidden.data.ctx_tokens == 32 * 8 // 4 + 4


OF_TEXT = [
    ("[tokenizer]\nvocab_size = 4096\n", "tokenizer"),
    ("[model]\nlayers = 2\n", "model"),
    ("[rl]\ngroup_size = 4\n", "rl"),
    ("[inference]\nengine = 'vllm'\n", "inference"),
    ("[batch]\nglobal_batch_tokens = 4096\n", "batch.global_batch_tokens"),
    ("[data]\nctx_tokens = 64\n", "data.ctx_tokens"),
    ("[data]\nsampling_unit = 'tokens'\n", "data.sampling_unit"),
    ("[eval]\nprompts = ['a']\n", "eval.prompts"),
    ("[precision]\nfp8 = 'rowwise'\n", "precision.fp8"),
]


@pytest.mark.parametrize(("text", "key"), OF_TEXT)
def test_keys_of_text_are_refused_with_the_reason(text: str, key: str) -> None:
    (fault,) = run_toml.read(BASE + text, "birds.toml").faults
    assert fault.code == UNKNOWN_KEY
    assert fault.what == f'{key} is for text, and run.kind = "audio" trains on clips'
    assert fault.fix == 'take it out, or run.kind = "pretrain"'
    assert fault.patch == {key: None}


def test_text_has_no_clips_and_clips_no_text() -> None:
    (fault,) = run_toml.read(BASE.replace("chirps", "files"), "birds.toml").faults
    assert fault.code == NOT_A_CHOICE
    text = BASE.replace('"audio"', '"pretrain"').replace("chirps", "python-stdlib")
    (fault,) = run_toml.read(f"{text}[audio]\nclip_s = 3.0\n", "text.toml").faults
    assert fault.what == 'audio is for clips, and run.kind is "pretrain"'


SECOND = '[[data.sources]]\nkind = "audio"\npath = "clips/"\n[data]\nsampling_probs = [0.3, 0.7]\n'


def test_several_sources_have_shares() -> None:
    run = read(BASE + SECOND)
    assert [source.kind for source in run.data.sources] == ["chirps", "audio"]
    assert run.data.sampling_probs == (0.3, 0.7)
    changed = replace(run, data=replace(run.data, sampling_probs=(0.5, 0.5)))
    assert [each.name for each in list_changes(run, changed)] == ["data.sampling_probs"]


@pytest.mark.parametrize("kind", ["files", "hf-dataset", "tokens", "python-stdlib"])
def test_a_source_of_text_beside_clips_is_refused(kind: str) -> None:
    text = BASE + SECOND.replace('"audio"', f'"{kind}"')
    (fault,) = run_toml.read(text, "birds.toml").faults
    assert (fault.code, fault.key) == (NOT_A_CHOICE, ("data", "sources", 1, "kind"))
    assert kind in fault.what
    assert "audio" in fault.fix


CHANGES: dict[str, dict[str, Any]] = {
    "audio.encoder": {"encoder": AudioEncoder(layers=2)},
    "audio.objective": {"objective": "lejepa"},
    "audio.clip_s": {"clip_s": 3.0},
    "audio.seek": {"seek": "fast"},
    "audio.label_field": {"label_field": ""},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_decides_weights_and_clips_may_not_change(name: str) -> None:
    run = read(BASE)
    changed = replace(run, audio=replace(Audio(), **CHANGES[name]))
    assert [each.name for each in list_changes(run, changed)] == [name]


def test_what_only_reads_may_change() -> None:
    run = read(BASE)
    changed = replace(run, audio=replace(Audio(), threads=8, on_broken="fail", most_broken=0.5))
    assert list(list_changes(run, changed)) == []


def test_a_clip_costs_what_is_seen_of_it() -> None:
    whole, hidden = Audio(), replace(Audio(), objective="masked_autoencoder")
    views = replace(Audio(), objective="lejepa")
    assert [size_of(each) for each in (whole, hidden, views)] == [(1, 260), (1, 68), (4, 100)]
    assert flops_per_clip(whole) / flops_per_clip(hidden) == pytest.approx(260 / 68, rel=0.2)
    assert flops_per_clip(whole) > 6 * whole.patches * 6 * 4 * 192**2
