"""verify-model against transformers: folders that it refuses or fills are found, and no sound one is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prime_train.models.read.evidence import ModelEvidence
from prime_train.models.read.read_folder import read_folder
from prime_train.models.verdict.verdicts import Outcome
from tests.system.models.planted_folders import BROKEN, SOUND, Change, copy_model, save_model
from tests.unit.models.known_models import evidence, verdict


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, tuple[str, Change, str]], Path]:
    pytest.importorskip("transformers")
    pytest.importorskip("torch").set_num_threads(1)
    saved: dict[tuple[str, str], Path] = {}

    def make(title: str, plan: tuple[str, Change, str]) -> Path:
        model, change, shard = plan
        if (model, shard) not in saved:
            saved[model, shard] = save_model(model, tmp_path_factory.mktemp("model") / "saved", shard)
        return copy_model(saved[model, shard], tmp_path_factory.mktemp("planted") / title.replace(" ", "-"), change)

    return make


def evidence_of(folder: Path) -> ModelEvidence:
    """The evidence about a folder, with a tokenizer and a template that are well."""
    config = (folder / "config.json").read_text(encoding="utf-8")
    return evidence(files=read_folder(str(folder), "folder", folder))._replace(config=config)


def complaint(folder: Path) -> str:
    """Why transformers does not load a model as saved: a refusal, random tensors, two heads, outputs of NaN."""
    import torch
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained  # its stubs leave the loading info out
    notes: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        model, info = load(folder, output_loading_info=True, local_files_only=True)
        with torch.no_grad():
            finite = bool(torch.isfinite(model(torch.tensor([[1, 2, 3]])).logits).all())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        logger.removeHandler(handler)
    kinds = ("missing_keys", "mismatched_keys", "unexpected_keys", "error_msgs")
    found = [f"{kind}: {sorted(map(str, info[kind]))[:2]}" for kind in kinds if info.get(kind)]
    found += [note for note in notes if "will NOT tie" in note]
    return "; ".join(found) or ("" if finite else "outputs that are no numbers")


@pytest.mark.parametrize("title", SOUND)
def test_a_folder_that_transformers_loads_is_not_refused(
    title: str, planted: Callable[[str, tuple[str, Change, str]], Path]
) -> None:
    folder = planted(title, SOUND[title])
    assert complaint(folder) == ""
    bad = [each for each in verdict(evidence_of(folder)).checks if each.outcome is Outcome.FAILURE]
    assert [(each.id, each.what) for each in bad if each.id in ("access", "config", "weights", "quantisation")] == []


@pytest.mark.parametrize("title", BROKEN)
def test_a_folder_that_transformers_refuses_or_fills_is_found(
    title: str, planted: Callable[[str, tuple[str, Change, str]], Path]
) -> None:
    folder = planted(title, BROKEN[title])
    assert complaint(folder) != ""
    found = verdict(evidence_of(folder))
    judged = ("config", "weights", "transformers")
    bad = [each for each in found.checks if each.outcome is Outcome.FAILURE and each.id in judged]
    assert bad
    assert not found.usable
    assert all(each.what and each.why and each.fix for each in bad)


def test_the_set_is_as_large_as_asked() -> None:
    assert len(BROKEN) >= 40
    assert len(SOUND) >= 20
