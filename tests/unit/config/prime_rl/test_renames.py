"""What the value of a moved key becomes."""

from __future__ import annotations

from typing import Any

import pytest
import tomli

from prime_train.config.prime_rl.renames import convert_moved, parse_renames, renames
from prime_train.core.installation import shipped
from prime_train.rules.fix import fix_text
from prime_train.rules.judge import Verdict, lint
from prime_train.spec.answers import prime_rl_of


@pytest.mark.parametrize(
    ("environment", "rest"),
    [
        ({"id": "aime"}, {}),
        ({"id": "aime", "rollouts_per_example": 32}, {"group_size": 32}),
        (
            {"id": "aime", "group_size": 8, "num_examples": 4, "ratio": 0.5},
            {"group_size": 8, "num_examples": 4, "ratio": 0.5},
        ),
    ],
)
def test_an_environment_becomes_a_source(environment: dict[str, Any], rest: dict[str, Any]) -> None:
    made = {"name": "aime", **rest, "env": {"taskset": {"id": "aime"}}}
    assert convert_moved("sources", [environment]) == [made]


@pytest.mark.parametrize(
    "environment",
    [
        {"id": "aime", "args": {"id": "x"}},  # the taskset has an id already
        {"id": "aime", "rollouts_per_example": 8, "group_size": 4},  # which of the two counts
        {"name": "aime"},
        "aime",
    ],
)
def test_an_environment_that_a_person_has_to_look_at(environment: Any) -> None:
    assert convert_moved("sources", [environment]) is None


def test_an_evaluation_of_january_is_taken_to_august() -> None:
    january = '[[env]]\nid = "aime2024"\nrollouts_per_example = 32 # 960 rollouts\n'
    done = fix_text(january, lambda text: lint(text, "evals/aime.toml", "2026-08"))
    assert done.verdict.ok
    assert done.verdict.root == "evals"


def test_arguments_of_an_environment_are_kept_and_left_to_a_person() -> None:
    text = '[orchestrator]\n[[orchestrator.env]]\nid = "aime"\nargs = {dataset = "x"}\n[trainer]\n'
    (finding,) = [item for item in lint(text, "rl.toml", "2026-08").findings if item.key == "orchestrator.env"]
    assert not finding.safe
    assert "the names of its args" in finding.fix
    (source,) = finding.patch["orchestrator.train.source"]
    assert source["env"] == {"taskset": {"id": "aime", "dataset": "x"}}


def test_environments_of_january_stay_what_they_are_in_may() -> None:
    text = '[orchestrator]\n[[orchestrator.env]]\nid = "aime"\nargs = {dataset = "x"}\n[trainer]\n'
    done = fix_text(text, lambda text: lint(text, "rl.toml", "2026-05"))
    assert done.verdict.ok
    entry = {"id": "aime", "args": {"dataset": "x"}}
    assert tomli.loads(done.text)["orchestrator"]["train"] == {"env": [entry]}


JANUARY = """\
# a run of January
max_steps = 500 # short
[wandb]
project = "p" # the project
[model]
name = "Qwen/Qwen3-4B"
[orchestrator]
batch_size = 512
rollouts_per_example = 16 # of one prompt
# what is sampled
[orchestrator.sampling]
max_tokens = 2048 # half of the context
# the tasks
[[orchestrator.env]]
id = "math-env" # the environment
name = "math"
[[orchestrator.env]]
id = "code-env"
rollouts_per_example = 8 # fewer
[trainer]
[inference]
"""


def test_migration_keeps_tables_and_comments_in_their_places() -> None:
    done = fix_text(JANUARY, lambda text: lint(text, "rl.toml", "2026-08"), _safe)
    expected = JANUARY
    for old, new in (
        ("[wandb]", "[monitors.wandb]"),
        ("rollouts_per_example", "group_size"),
        ("[orchestrator.sampling]", "[orchestrator.train.sampling]"),
        ("max_tokens", "max_completion_tokens"),
        ("[[orchestrator.env]]", "[[orchestrator.train.source]]"),
        ("id =", "env.taskset.id ="),
        ("8 # fewer\n", '8 # fewer\nname = "code-env"\n'),
    ):
        expected = expected.replace(old, new)
    assert done.text == expected
    assert done.verdict.ok


def _safe(verdict: Verdict) -> Verdict:
    return verdict._replace(findings=tuple(finding for finding in verdict.findings if finding.safe))


@pytest.mark.parametrize(
    ("lists", "safe"),
    [
        ("trainer_gpu_ids = [1, 2]\ninference_gpu_ids = [0]", True),
        ("trainer_gpu_ids = [0]\ninference_gpu_ids = [1]", True),
        ("trainer_gpu_ids = [0, 1]\ninference_gpu_ids = [0]", False),  # a shared GPU is not two
        ("trainer_gpu_ids = [4, 5]\ninference_gpu_ids = [6, 7]", False),
        ("trainer_gpu_ids = [0, 2]\ninference_gpu_ids = [4]", False),
        ("trainer_gpu_ids = [0]", False),  # the default of the other list is the same GPU
    ],
)
def test_lists_of_gpus_become_counts_only_if_the_gpus_stay_the_same(lists: str, safe: bool) -> None:
    text = f'{lists}\n[orchestrator]\n[[orchestrator.env]]\nid = "a"\n[trainer]\n'
    found = [item for item in lint(text, "rl.toml", "2026-08").findings if item.key.endswith("gpu_ids")]
    assert found
    assert all(item.safe is safe and item.patch for item in found)


def test_a_key_without_a_place_is_removed_only_on_request() -> None:
    text = 'max_async_level = 4\n[orchestrator]\n[[orchestrator.env]]\nid = "a"\n[trainer]\n'
    (finding,) = [item for item in lint(text, "rl.toml", "2026-08").findings if item.key == "max_async_level"]
    assert finding.patch == {"max_async_level": None}
    assert not finding.safe


SECTION = {
    "generation": "2026-09",
    "why": "gone",
    "keys": [
        ["orchestrator.group_size", "orchestrator.group"],
        ["inference.vllm", "server.vllm"],
        ["inference.vllm.max_model_len", "server.context"],
        ["trainer.optim.lr", "trainer.optimizer.lr"],
        ["orchestrator.model.lora", ""],
    ],
}


@pytest.mark.parametrize(
    ("january", "august", "september"),
    [
        ("orchestrator.rollouts_per_example", "orchestrator.group_size", "orchestrator.group"),
        ("inference.parallel.tp", "inference.vllm.tensor_parallel_size", "server.vllm.tensor_parallel_size"),
        ("inference.model.name", "inference.vllm.model", "server.vllm.model"),
        ("max_model_len", "inference.vllm.max_model_len", "server.context"),
        ("trainer.optim.lr", "trainer.optim.lr", "trainer.optimizer.lr"),
        ("", "orchestrator.model.lora", ""),
    ],
)
def test_a_section_takes_every_older_key_to_a_newer_generation(january: str, august: str, september: str) -> None:
    with open(shipped("prime_rl", "renames.toml"), "rb") as file:
        rows = parse_renames(tomli.load(file) | {"section": [SECTION]})
    assert rows.columns == (*renames().columns, "2026-09")
    names = [dict(zip(rows.columns, entry.names, strict=True)) for entry in rows.entries]
    assert {"2026-01": january, "2026-08": august, "2026-09": september} in [
        {generation: name[generation] for generation in ("2026-01", "2026-08", "2026-09")} for name in names
    ]


def test_shims_of_may_are_deprecations() -> None:
    text = '[orchestrator]\n[[orchestrator.env]]\nid = "aime"\n[orchestrator.sampling]\nmax_tokens = 99\n[trainer]\n'
    verdict = lint(text, "rl.toml", "2026-05")
    found = [finding for finding in verdict.findings if finding.code == "CFG007"]
    assert {str(finding.severity) for finding in found} == {"warning"}
    assert len(found) == 2
    assert verdict.run is not None
    parts = prime_rl_of(verdict.run)
    assert parts.rollout is not None
    assert parts.rollout.max_completion_tokens == 99  # judged where it is written


def test_a_renamed_section_is_judged_in_the_first_round() -> None:
    text = '[orchestrator]\n[[orchestrator.env]]\nid = "a"\n[trainer.model.experimental.lora]\nalpha = 0\n[inference]\n'
    found = {finding.code: finding.key for finding in lint(text, "rl.toml", "2026-01").findings}
    assert found["LOR006"] == "trainer.model.experimental.lora.alpha"


def test_in_january_the_shared_value_wins() -> None:
    text = (
        'max_steps = 5\nseq_len = 512\n[model]\nname = "a/shared"\n[trainer]\nmax_steps = 7\n[trainer.model]\n'
        'name = "a/own"\nseq_len = 99\n[orchestrator]\nmax_steps = 9\n[[orchestrator.env]]\nid = "a"\n[inference]\n'
    )
    verdict = lint(text, "rl.toml", "2026-01")
    assert not {"MOD007", "SCH004"} & {finding.code for finding in verdict.findings}
    assert verdict.run is not None
    parts = prime_rl_of(verdict.run)
    assert parts.trainer is not None
    trainer = parts.trainer
    assert (trainer.model_name, trainer.ctx_tokens, trainer.max_steps) == ("a/shared", 512, 5)


def test_a_file_without_the_trainer_is_not_judged_by_defaults() -> None:
    text = 'max_steps = 50\n[model]\nname = "a/b"\n[orchestrator]\nbatch_size = 64\ngroup_size = 8\n[inference]\n'
    verdict = lint(text, "rl.toml", "2026-08")
    assert not {finding.key for finding in verdict.findings if finding.key.startswith("trainer.")} - {"trainer"}
