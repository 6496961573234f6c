"""The process of an audio worker: reads requests for parts of a batch, and writes their samples into shared memory.

Started by `workers`, which gives it the settings as the first line and then one line for each part. It answers each
with one line. It ends with its standard input, so it cannot outlive the trainer.
"""

from __future__ import annotations

import json
import mmap
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from prime_train.core.errors import ExitCode, UserError
from prime_train.trainer.audio.clip_files import Columns
from prime_train.trainer.audio.log_mel import Floats, MelSettings
from prime_train.trainer.audio.order import ClipOrder
from prime_train.trainer.audio.samples import SampleMaker
from prime_train.trainer.audio.tables import open_sources


def main(requests: TextIO, answers: TextIO) -> int:
    try:
        given = json.loads(requests.readline())
        maker = build_maker(given["maker"])
        slots = map_slots(given["descriptor"], given["slots"], given["batch"], maker.mel)
        with ThreadPoolExecutor(given["threads"]) as threads:
            for line in requests:
                answers.write(json.dumps(_make_part(json.loads(line), maker, slots, threads)) + "\n")
                answers.flush()
    except UserError as error:
        answers.write(json.dumps({"error": error.parts()}) + "\n")
        answers.flush()
    except (BrokenPipeError, KeyboardInterrupt):  # the trainer is gone, or the user ends both
        return 1
    return 0


def _make_part(
    request: dict[str, Any], maker: SampleMaker, slots: list[Floats], threads: ThreadPoolExecutor
) -> dict[str, Any]:
    """The samples at `positions` of a batch, whose first place is `first`."""
    positions = range(request["begin"], request["end"], request["stride"])
    places = [request["first"] + position for position in positions]
    rows = maker.order.find_rows(np.asarray(places, dtype=np.int64)).tolist()
    into = [slots[request["slot"]][position] for position in positions]
    made = threads.map(maker.make, places, rows, into)
    return {"slot": request["slot"], "samples": dict(zip(positions, made, strict=True))}


def build_maker(given: dict[str, Any]) -> SampleMaker:
    """The maker that `describe_maker` described. Raises UserError."""
    columns = Columns(**given["columns"])
    paths = given["paths"]
    table, _ = open_sources(list(map(Path, paths)), columns).hold_out(given["held_out"])
    # Each process opens the files itself, and another number of rows would be another order.
    if table.identity != given["identity"]:
        what, why = "the files of the clips have changed since the start", "each row has its number by all files"
        raise UserError(what, ", ".join(paths), why, "start again when nothing writes there", ExitCode.OUT_OF_REACH)
    order = ClipOrder(table.rows, given["seed"], tuple(given["blocks"]), tuple(given["quotas"]))
    mel, held_out = MelSettings(**given["mel"]), given["held_out"]
    return SampleMaker(table, order, mel, given["clip_s"], columns, held_out, given["seek"])


def map_slots(descriptor: int, slots: int, batch: int, mel: MelSettings) -> list[Floats]:
    """Each slot of the shared memory as an array (batch, frames, mels)."""
    shape = (slots, batch, mel.frames, mel.mels)
    memory = mmap.mmap(descriptor, int(np.prod(shape)) * 4)
    return list(np.frombuffer(memory, dtype=np.float32).reshape(shape))


if __name__ == "__main__":
    sys.exit(main(sys.stdin, sys.stdout))
