"""Loads the weights that a trainer hands over. vLLM's workers import it, in an environment without prime_train.

The server gets `--worker-extension-cls prime_train_weights.WeightLoader` and this folder in PYTHONPATH. Written against
vLLM 0.32.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open


class WeightLoader:
    """Methods that vLLM adds to each worker. /collective_rpc calls them by name."""

    model_runner: Any  # of the worker
    _held = 0

    def load_handover(self, folder: str, version: int) -> dict[str, Any]:
        """Load the weights of `folder`; returns their version and SHA-256, or an error instead of raising it.

        An exception in a worker would end the engine core.
        """
        try:
            marker = json.loads((Path(folder) / "marker.json").read_text(encoding="utf-8"))
            if marker["version"] != version:
                return {"error": f"the folder has version {marker['version']}"}
            path = Path(folder) / marker["file"]
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != marker["sha256"]:
                return {"error": f"the file has the SHA-256 {digest}, and its marker {marker['sha256']}"}
            self._held = 0  # until all is loaded
            self.model_runner.reload_weights(weights_iterator=_read_tensors(path))
            _refresh_tied_head(self.model_runner.get_model())
            self._held = version
        except Exception as error:  # of every kind, as above
            return {"error": f"{type(error).__name__}: {error}"}
        return {"version": version, "sha256": digest}

    def report_version(self) -> dict[str, Any]:
        """The version of the weights that were loaded last; 0 = those of the start."""
        return {"version": self._held}


def _read_tensors(path: Path) -> Iterator[tuple[str, Any]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - the file is no mapping
            yield name, file.get_tensor(name)


def _refresh_tied_head(model: Any) -> None:
    """Pack a tied head again. On a CPU vLLM 0.32 multiplies with a packed copy, which a reload does not replace."""
    head, language_model = getattr(model, "lm_head", None), getattr(model, "model", None)
    embedding = getattr(language_model, "embed_tokens", None)
    if head is not None and embedding is not None and head is not embedding and head.weight is embedding.weight:
        head.quant_method.process_weights_after_loading(head)
