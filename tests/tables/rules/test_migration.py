"""Files of prime-rl 2026-01 become files of 2026-08: how many are accepted, and which values stay.

The files have the shapes of prime-rl's own examples of January. `pytest -s` prints the figure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tomli

from prime_train.core.findings import Severity
from prime_train.rules.fix import Fixed, fix_text
from prime_train.rules.judge import Verdict, lint
from prime_train.toml.document import patched
from tests.unit.config.prime_rl.files import RL_2026_01
from tests.unit.rules.examples import written

_MUST_ACCEPT = 0.8

_EVALS = [{"id": "word-count", "num_examples": 30, "rollouts_per_example": 2}]
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "fine-tune": {"model.name": "me/Qwen3-1.7B-Words-SFT"},
    "local folder": {"model.name": "weights/words"},
    "older family": {"model.name": "Qwen/Qwen2.5-Math-7B"},
    "two environments": {"orchestrator.env": [{"id": "word-count"}, {"id": "sums", "name": "sums-easy"}]},
    "environment arguments": {"orchestrator.env": [{"id": "word-count", "args": {"max_words": 9}}]},
    "owner and version": {"orchestrator.env": [{"id": "me/word-count@0.2.1"}]},
    "evaluation": {"orchestrator.eval.interval": 10, "orchestrator.eval.env": _EVALS},
    "lora": {
        "trainer.model.lora": {"rank": 16, "alpha": 32.0},
        "orchestrator.model.lora": {"name": "words"},
        "trainer.optim.lr": 1e-5,
    },
    "checkpointing": {"trainer.model.ac": {"freq": 1}, "trainer.model.compile": {"fullgraph": False}},
    "parallel server": {"inference.parallel": {"tp": 2, "dp": 1}, "inference_gpu_ids": [0, 3]},
    "one server GPU first": {"trainer_gpu_ids": [0, 1], "inference_gpu_ids": [2]},
    "long answers": {
        "orchestrator.seq_len": 16384,
        "trainer.model.seq_len": 16384,
        "inference.model.max_model_len": 16384,
        "orchestrator.sampling.max_tokens": 12288,
    },
    "logging": {"log.level": "debug", "output_dir": "outputs/words"},
    "resume": {"ckpt.resume_step": -1},
    "oversampling": {"orchestrator.oversampling_factor": 2.0},
    "mask ratios": {"trainer.loss": {"ratio_type": "token", "token_mask_high": 8.0}},
    "difficulty pools": {"orchestrator.buffer": {"online_difficulty_filtering": True}},
    "server arguments": {"inference.model": {"max_model_len": 8192, "enforce_eager": True}},
    "weights as shards": {"trainer.ckpt.weights": {"save_sharded": True}},
}


def _texts() -> Iterator[tuple[str, str]]:
    base = tomli.loads(RL_2026_01)
    for what, patch in SHAPES.items():
        yield what, written(patched(base, patch))


def _fixed(text: str, *, only_safe: bool) -> Fixed:
    def select(verdict: Verdict) -> Verdict:
        return verdict._replace(findings=tuple(each for each in verdict.findings if each.safe or not only_safe))

    return fix_text(text, lambda changed: lint(changed, "rl.toml", "2026-08"), select)


def _leaves(value: Any) -> Iterator[str]:
    match value:
        case dict():
            yield from (leaf for below in value.values() for leaf in _leaves(below))
        case list():
            yield from (leaf for below in value for leaf in _leaves(below))
        case _:
            yield str(value)


def test_the_shapes_are_files_of_january() -> None:
    refused = {
        what: [finding.what for finding in verdict.findings if finding.severity is Severity.ERROR]
        for what, text in _texts()
        if not (verdict := lint(text, "rl.toml", "2026-01")).ok
    }
    assert refused == {}


def test_most_files_are_accepted_after_migration() -> None:
    left = {
        what: [finding.key for finding in verdict.findings if finding.severity is Severity.ERROR]
        for what, text in _texts()
        if not (verdict := _fixed(text, only_safe=False).verdict).ok
    }
    print(f"{len(SHAPES) - len(left)} of {len(SHAPES)} files of 2026-01 are accepted as 2026-08")  # noqa: T201
    assert len(left) <= (1 - _MUST_ACCEPT) * len(SHAPES), left


@pytest.mark.parametrize(
    "january",
    [
        'num_examples = 16\n[[env]]\nid = "word-count"\n',
        'max_concurrent = 16\n[model]\nname = "Qwen/Qwen3-0.6B"\n[client]\nbase_url = ["http://localhost:8000/v1"]\n',
    ],
)
def test_an_evaluation_does_not_become_a_fine_tuning(january: str) -> None:
    fixed = fix_text(january, lambda changed: lint(changed, "evals/a.toml", "2026-08"))
    assert fixed.verdict.root == "evals"
    assert "[data]" not in fixed.text


@pytest.mark.parametrize("text", [text for _, text in _texts()], ids=SHAPES)
def test_a_safe_migration_keeps_each_value(text: str) -> None:
    before, after = tomli.loads(text), tomli.loads(_fixed(text, only_safe=True).text)
    for ids, count in (("trainer_gpu_ids", "num_train_gpus"), ("inference_gpu_ids", "num_infer_gpus")):
        listed = before.pop(ids)
        assert after.get(ids) == listed or after["deployment"][count] == len(listed)
    if before["ckpt"].pop("resume_step", None) is not None:
        assert after.get("resume") == {} or after["ckpt"]["resume_step"] == -1
    left = list(_leaves(after))
    for leaf in _leaves(before):
        assert leaf in left
        left.remove(leaf)
