"""Who can train and serve a model: by what is installed, else by the table."""

from __future__ import annotations

import pytest

from tests.fakes.model_folder import QWEN3
from tests.unit.models.known_models import check, evidence, installed

NEXT = QWEN3 | {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next"}
PHI3_SMALL = QWEN3 | {"architectures": ["Phi3SmallForCausalLM"], "model_type": "phi3"}
NOBODY = QWEN3 | {"architectures": ["NobodyForCausalLM"], "model_type": "nobody"}
SEES = QWEN3 | {
    "model_type": "qwen3_vl",
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "vision_config": {"depth": 1},
}


@pytest.mark.parametrize(
    ("config", "vllm", "outcome", "said"),
    [
        (QWEN3, "", "ok", "known since"),
        (QWEN3, "0.9.2", "ok", "0.9.2"),
        (NEXT, "0.9.2", "failure", "known since 0.10.2"),
        (NEXT, "0.10.0", "not known", "versions compared"),
        (NEXT, "0.13.0", "ok", "0.13.0"),
        (PHI3_SMALL, "0.32.0", "failure", "0.9.2 was the last"),
        (NOBODY, "0.32.0", "failure", "is not in"),
        (NOBODY, "99.0", "not known", "versions compared"),
        (QWEN3 | {"architectures": []}, "", "failure", "names no architecture"),
    ],
)
def test_vllm_by_the_table(config: dict[str, object], vllm: str, outcome: str, said: str) -> None:
    found = check(evidence(config=config), "vllm", vllm)
    assert str(found.outcome) == outcome, found
    assert said in found.what


def test_vllm_as_it_is_installed() -> None:
    here = installed(has_vllm=True, vllm="0.9.2", vllm_architectures=frozenset({"Qwen3ForCausalLM"}))
    assert check(evidence(installed=here), "vllm").outcome == "ok"
    lacks = check(evidence(config=NEXT, installed=here), "vllm")
    assert (str(lacks.outcome), lacks.fix) == ("failure", "pip install 'vllm>=0.10.2'")
    gone = installed(has_vllm=True, vllm="0.11.0", vllm_gone={"Qwen3NextForCausalLM": "0.10.9"})
    assert "0.10.9 was the last" in check(evidence(config=NEXT, installed=gone), "vllm").what
    falls_back = installed(has_vllm=True, vllm="0.11.0", transformers_types=frozenset({"nobody"}))
    assert check(evidence(config=NOBODY, installed=falls_back), "vllm").outcome == "warning"
    asked = check(evidence(config=NEXT, installed=here), "vllm", "0.13.0")
    assert asked.outcome == "ok"  # --vllm beats what is installed


@pytest.mark.parametrize(
    ("config", "outcome"),
    [(QWEN3, "ok"), (NOBODY, "failure"), (NOBODY | {"auto_map": {"AutoConfig": "x.Y"}}, "warning")],
)
def test_transformers(config: dict[str, object], outcome: str) -> None:
    assert str(check(evidence(config=config), "transformers").outcome) == outcome
    here = installed(has_transformers=True, transformers="5.23.0", transformers_types=frozenset({"qwen3"}))
    assert str(check(evidence(config=config, installed=here), "transformers").outcome) == outcome


def test_a_transformers_that_is_too_old() -> None:
    old = installed(has_transformers=True, transformers="4.48.0", transformers_types=frozenset({"llama"}))
    found = check(evidence(installed=old), "transformers")
    assert (str(found.outcome), found.fix) == ("failure", "pip install 'transformers>=4.51.0'")


@pytest.mark.parametrize(
    ("config", "bundled", "prime_rl"),
    [
        (QWEN3, "ok", "ok"),
        (QWEN3 | {"model_type": "llama"}, "ok", "ok"),
        (QWEN3 | {"model_type": "qwen2"}, "ok", "warning"),
        (QWEN3 | {"model_type": "qwen2", "use_sliding_window": True}, "warning", "warning"),
        (NOBODY, "warning", "failure"),
        (SEES, "warning", "ok"),
        (SEES | {"model_type": "gemma3"}, "warning", "warning"),
    ],
)
def test_trainers(config: dict[str, object], bundled: str, prime_rl: str) -> None:
    assert str(check(evidence(config=config), "bundled-trainer").outcome) == bundled
    assert str(check(evidence(config=config), "prime-rl").outcome) == prime_rl


def test_prime_rl_as_it_is_installed() -> None:
    here = installed(has_prime_rl=True, prime_rl="0.9", prime_rl_types=frozenset({"qwen3"}))
    assert check(evidence(installed=here), "prime-rl").outcome == "ok"
    qwen2 = QWEN3 | {"model_type": "qwen2"}
    assert check(evidence(config=qwen2, installed=here), "prime-rl").outcome == "warning"
    strict = here._replace(prime_rl_takes_others=False)
    found = check(evidence(config=qwen2, installed=strict), "prime-rl")
    assert (str(found.outcome), found.fix) == ("failure", "use a model that it has code for: qwen3")
    sees = here._replace(prime_rl_vision_types=frozenset({"gemma3"}))
    assert check(evidence(config=SEES | {"model_type": "gemma3"}, installed=sees), "prime-rl").outcome == "ok"


def test_a_rope_kind_that_an_older_vllm_refuses() -> None:
    llama3 = QWEN3 | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    old = check(evidence(config=llama3), "vllm", "0.5.1")
    assert (str(old.outcome), old.fix) == ("failure", "pip install 'vllm>=0.5.3'")
    assert "rope_scaling of the kind llama3" in old.what
    here = installed(has_vllm=True, vllm="0.5.2", vllm_architectures=frozenset({"Qwen3ForCausalLM"}))
    assert str(check(evidence(config=llama3, installed=here), "vllm").outcome) == "failure"
    assert str(check(evidence(config=llama3), "vllm", "0.32.0").outcome) == "ok"
    assert str(check(evidence(config=QWEN3), "vllm", "0.5.1").outcome) == "not known"
