"""An extension of vLLM's workers with faults: it reports weights as loaded without loading them, or not all of them.

The faults are files in the folder that FAULTS names.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import prime_train_weights  # type: ignore[import-not-found]  # on the server's path only


class StaleLoader(prime_train_weights.WeightLoader):  # type: ignore[misc]
    def load_handover(self, folder: str, version: int) -> dict[str, Any]:
        faults = Path(os.environ["FAULTS"])
        if (faults / "keeps_old_head").exists():
            prime_train_weights._refresh_tied_head = lambda _model: None
        if not (faults / "keeps_old_weights").exists():
            return super().load_handover(folder, version)  # type: ignore[no-any-return]
        marker = json.loads((Path(folder) / "marker.json").read_text())
        return {"version": version, "sha256": marker["sha256"]}
