"""Evidence of models that are in memory only: what a test changes is what it is about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prime_train.core.chat_template import TemplateText
from prime_train.estimate import hardware
from prime_train.facts.facts import NotKnown
from prime_train.models.read.architectures import InstalledPackages
from prime_train.models.read.chat_template import Renderings, render_all
from prime_train.models.read.evidence import TURN_END, ModelEvidence, Tokenized
from prime_train.models.read.model_files import ModelFiles, Weights
from prime_train.models.verdict.judge import judge
from prime_train.models.verdict.support import Stack
from prime_train.models.verdict.verdicts import Check, ModelVerdict
from tests.fakes.model_folder import QWEN3, STEADY

NOWHERE = NotKnown("no interpreter was asked")
H100 = hardware.hardware_from_name("h100-80gb")
WEIGHTS = Weights(1, 30_912, 61_824, {"BF16": 30_912}, 2, (384, 32), faults=())
FILES = ModelFiles(
    name="lab/good",
    origin="hub",
    folder=Path("/nowhere"),
    revision="0" * 40,
    sizes={"config.json": 300, "model.safetensors": 62_000},
    unread=(),
    weights=WEIGHTS,
    card={"license": "apache-2.0"},
)
SAID: dict[str, Renderings] = {}  # a rendering takes a process: each template once


def rendered(template: str) -> Renderings:
    if template not in SAID:
        said = render_all(TemplateText("chat_template.jinja", template), {"bos_token": "", "eos_token": "<|im_end|>"})
        assert isinstance(said, Renderings), said
        SAID[template] = said
    return SAID[template]


def evidence(config: Mapping[str, Any] = QWEN3, template: str | None = STEADY, **changed: Any) -> ModelEvidence:
    """A model that is well in every way, but for what is changed."""
    usual = ModelEvidence(
        files=FILES,
        config=json.dumps(config),
        generation={},
        tokenizer_config={},
        template=None if template is None else TemplateText("chat_template.jinja", template),
        renderings=None if template is None else rendered(template),
        tokenized=Tokenized(263, 262, True, {TURN_END: [258]}),
        installed=NOWHERE,
    )
    return usual._replace(**changed)


def installed(**changed: Any) -> InstalledPackages:
    """An interpreter with nothing in it, but for what is changed."""
    none: frozenset[str] = frozenset()
    nothing = InstalledPackages("python", "", "", "", False, False, False, none, {}, none, none, none, none, True)
    return nothing._replace(**changed)


def verdict(found: ModelEvidence, vllm: str = "") -> ModelVerdict:
    return judge(found, Stack(found.installed, vllm), H100)


def check(found: ModelEvidence, check_id: str, vllm: str = "") -> Check:
    """The one check of that id."""
    (only,) = [each for each in verdict(found, vllm).checks if each.id == check_id]
    return only


def outcomes(found: ModelEvidence, vllm: str = "") -> dict[str, str]:
    return {use.id: str(use.outcome) for use in verdict(found, vllm).uses}
