"""Exports an encoder as a folder, encoder.safetensors and config.json, and reads it.

An example, which needs the packages torch and safetensors and prime-train itself:

    from prime_train.trainer.audio.learning.encoder_folder import read_encoder

    encoder = read_encoder("final")  # torch.nn.Module
    vectors = encoder(log_mels)  # (B, 512, 128) from prime_train.audio -> (B, registers + patches, width)
    embedding = encoder.pool(vectors)  # (B, width)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.whole_folder import write_folder
from prime_train.spec.audio import Audio
from prime_train.trainer.audio.learning.patch_encoder import PatchEncoder

WEIGHTS, CONFIG = "encoder.safetensors", "config.json"
_FORMAT = "prime-train audio encoder"
_VERSION = 1
_MOST_CONFIG_BYTES = 2**20
_PREFIX = "encoder."


def write_encoder(
    folder: Path, weights: Mapping[str, Tensor], audio: Audio, dtype: torch.dtype = torch.float32
) -> Path:
    """Write the encoder in an AudioModel's `weights`, which are whole. Replaces the folder, and returns it. OSError."""
    own = {
        name.removeprefix(_PREFIX): weight.detach().to("cpu", dtype).contiguous()
        for name, weight in weights.items()
        if name.startswith(_PREFIX)
    }
    described = {"format": _FORMAT, "version": _VERSION, "audio": asdict(audio)}
    with write_folder(folder, replaces=True) as beside:
        save_file(own, beside / WEIGHTS, metadata={"format": "pt"})
        (beside / CONFIG).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    return folder


def read_encoder(folder: str | Path) -> PatchEncoder:
    """The encoder in a folder, in fp32 on the CPU. Raises UserError where the folder has none."""
    folder = Path(folder)
    audio = read_audio(folder)
    try:
        with outside.open_regular(folder / WEIGHTS):  # no pipe and no device
            pass
        with torch.device("meta"):
            encoder = PatchEncoder(audio)
        encoder.to_empty(device="cpu")
        encoder.load_state_dict({name: weight.float() for name, weight in load_file(folder / WEIGHTS).items()})
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise _refuse(folder / WEIGHTS, error) from error
    return encoder


def read_audio(folder: Path) -> Audio:
    """The table [audio] that an encoder was trained with, which also describes its spectrograms. Raises UserError."""
    from pydantic import TypeAdapter

    try:
        described = json.loads(outside.read_text(folder / CONFIG, _MOST_CONFIG_BYTES))
        if (described["format"], described["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"its format is {described['format']} {described['version']}")
        return TypeAdapter(Audio).validate_python(described["audio"])
    except (OSError, ValueError, TypeError, KeyError) as error:  # pydantic's ValidationError is a ValueError
        raise _refuse(folder / CONFIG, error) from error


def _refuse(path: Path, error: Exception) -> UserError:
    what = f"it is no exported encoder: {str(error).splitlines()[0][:200]}"
    why = f"an encoder is {WEIGHTS} and {CONFIG}, which describes it"
    return UserError(what, str(path), why, "export it again from the run's checkpoint", ExitCode.OUT_OF_REACH)
