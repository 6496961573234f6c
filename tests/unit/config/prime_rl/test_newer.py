"""Keys of a prime-rl that is newer than every table: a warning, where nothing else speaks against the file."""

from __future__ import annotations

import pytest

from prime_train.config.parsed_config import UNKNOWN_KEY, WRONG_TYPE
from prime_train.core.findings import Finding, Severity
from prime_train.rules.judge import lint
from tests.unit.config.prime_rl.files import RL_2026_05, RL_2026_08, SFT_2026_08

NEWER = {
    "orchestrator.constant_trainer_batch_size": "[orchestrator]\nconstant_trainer_batch_size = false\n",
    "orchestrator.train.group_size": "[orchestrator]\ntrain.group_size = 8\n",
    "orchestrator.train.algo": '[orchestrator]\ntrain.algo.type = "grpo"\n',
    "trainer.model.moe": '[orchestrator]\n[trainer.model.moe]\nrouter_dtype = "float32"\nload_balance = true\n',
    "trainer.model.optim_cpu_offload": "[orchestrator]\n[trainer.model.optim_cpu_offload]\noverlap = true\n",
}


def _schema_findings(text: str, generation: str | None = None) -> list[Finding]:
    return [
        finding for finding in lint(text, "rl.toml", generation).findings if finding.code in (UNKNOWN_KEY, WRONG_TYPE)
    ]


@pytest.mark.parametrize(("key", "lines"), NEWER.items(), ids=NEWER.keys())
def test_a_key_that_no_table_has_may_be_newer(key: str, lines: str) -> None:
    (finding,) = _schema_findings(RL_2026_08.replace("[orchestrator]\n", lines, 1))
    assert (finding.key, finding.severity) == (key, Severity.WARNING)
    assert "if your prime-rl is newer than 2026-08: prime-train schema import" in finding.fix
    assert (finding.patch, finding.safe) == ({}, False)


def test_a_file_for_supervised_fine_tuning_may_be_newer() -> None:
    (finding,) = _schema_findings(SFT_2026_08 + "\n[data.columns]\nmessages = 'conversation'\n")
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(("key", "lines"), NEWER.items(), ids=NEWER.keys())
def test_it_is_an_error_where_the_generation_is_named(key: str, lines: str) -> None:
    text = RL_2026_08.replace("[orchestrator]\n", lines, 1)
    for named in (
        _schema_findings(text, "2026-08"),
        _schema_findings(text + '\n[prime_train]\nprime_rl = "2026-08"\n'),
    ):
        assert [(finding.key, finding.severity) for finding in named] == [(key, Severity.ERROR)]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("group_siz = 8", "orchestrator.group_siz"),  # a similar name
        ("matmul_precision = 'high'", "orchestrator.matmul_precision"),  # the name of a key elsewhere
        ("group_size = 'many'", "orchestrator.group_size"),  # a plain value of a wrong type
    ],
)
def test_a_mistake_beside_it_stays_an_error(line: str, key: str) -> None:
    text = RL_2026_08.replace("group_size = 8\n", f"{line}\nconstant_trainer_batch_size = false\n")
    found = {finding.key: finding.severity for finding in _schema_findings(text)}
    assert found == {key: Severity.ERROR, "orchestrator.constant_trainer_batch_size": Severity.WARNING}


def test_a_key_of_an_older_generation_leaves_no_doubt() -> None:
    text = RL_2026_08.replace(
        "[orchestrator]\n", "[orchestrator]\nmax_async_level = 2\nconstant_trainer_batch_size = false\n"
    )
    (finding,) = _schema_findings(text)
    assert finding.severity is Severity.ERROR


def test_a_file_of_an_older_generation_is_not_newer() -> None:
    verdict = lint(RL_2026_05.replace("[orchestrator]\n", "[orchestrator]\nconstant_batches = true\n"), "rl.toml")
    (finding,) = [finding for finding in verdict.findings if finding.code == UNKNOWN_KEY]
    assert (verdict.generation, finding.severity) == ("2026-05", Severity.ERROR)


def test_a_file_of_unknown_keys_above_all_is_not_newer() -> None:
    text = "[orchestrator]\nbatch_size = 8\n[orchestrator.fresh]\n" + "".join(f"entry{n} = 1\n" for n in range(9))
    assert [finding.severity for finding in _schema_findings(text)] == [Severity.ERROR]


def test_no_rule_judges_what_a_newer_key_may_set() -> None:
    without = {finding.code for finding in lint(RL_2026_08.replace("group_size = 8\n", ""), "rl.toml").findings}
    text = RL_2026_08.replace("group_size = 8\n", "train.group_size = 8\n")
    assert without - {finding.code for finding in lint(text, "rl.toml").findings} == {"BAT004"}
