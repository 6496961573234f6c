"""An exported encoder is read as it was, and anything else is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from prime_train.core.errors import UserError
from prime_train.trainer.audio.learning.encoder_folder import CONFIG, WEIGHTS, read_audio, read_encoder, write_encoder
from tests.unit.trainer.audio.learning import small


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = small.model(small.config("lejepa"))
    return write_encoder(tmp_path / "final", model.state_dict(), model.audio)


@torch.no_grad()
def test_encoder_comes_back(folder: Path) -> None:
    model = small.model(small.config("lejepa"))
    log_mels = torch.from_numpy(small.clips(2).log_mels)
    assert torch.equal(read_encoder(folder)(log_mels), model.encoder(log_mels))
    assert read_audio(folder) == model.audio
    assert sorted(file.name for file in folder.iterdir()) == [CONFIG, WEIGHTS]


def test_bf16_halves_the_file(folder: Path, tmp_path: Path) -> None:
    model = small.model(small.AUDIO)
    half = write_encoder(tmp_path / "half", model.state_dict(), model.audio, torch.bfloat16)
    assert (half / WEIGHTS).stat().st_size < 0.6 * (folder / WEIGHTS).stat().st_size
    read = read_encoder(half)
    assert read.embedding.weight.dtype == torch.float32
    torch.testing.assert_close(read.embedding.weight, model.encoder.embedding.weight, rtol=0.01, atol=0.01)


def changed(folder: Path, key: str, value: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    config["audio"]["encoder"][key] = value
    (folder / CONFIG).write_text(json.dumps(config))


def test_other_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no exported encoder"):
        read_encoder(tmp_path)
    changed(folder, "width", 64)  # other weights than the file has
    with pytest.raises(UserError, match=WEIGHTS):
        read_encoder(folder)
    changed(folder, "width", -1)
    with pytest.raises(UserError, match=CONFIG):
        read_encoder(folder)
    (folder / CONFIG).write_text("[]")
    with pytest.raises(UserError, match=CONFIG):
        read_encoder(folder)


def test_truncated_weights_are_refused(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=WEIGHTS):
        read_encoder(folder)
