"""`prime_train.audio.batches(...)`: log-mel spectrograms for a script of one's own, with or without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prime_train.trainer.audio.batches import AudioBatch as AudioBatch
from prime_train.trainer.audio.batches import AudioBatches
from prime_train.trainer.audio.clip_files import Columns as Columns
from prime_train.trainer.audio.log_mel import MelSettings as MelSettings
from prime_train.trainer.audio.splits import choose_split


def batches(
    path: str | Path | Sequence[str | Path], batch: int, *, split: str = "train", **settings: Any
) -> AudioBatches:
    """Endless batches (B, frames, mels) of the clips below one path or several; `settings` as AudioBatches has them.

    With `state_dict` and `load_state_dict`, as torch's loaders have them. `split`: the files that are read, where their
    names have several. Raises UserError.
    """
    paths = (path,) if isinstance(path, str | Path) else path
    return AudioBatches([choose_split(Path(one), split) for one in paths], batch, **settings)
