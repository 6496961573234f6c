"""`python -m tests.fuzz.buckets`: a bucket that others write to, with objects that nobody expects.

A whole backup of step 50 is changed: its marker, its manifest, an object, or what stands in their place. It is listed,
verified, pulled and pruned. Each ends in a result or in an error with four parts; what is restored is whole, and the
backup before stays and is restored where the changed one is not whole.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from prime_train.backups import manifest as manifests
from prime_train.backups import pull, sync
from prime_train.backups.manifest import MANIFEST, MARKER
from prime_train.core.errors import UserError
from tests.fuzz import series
from tests.fuzz.values import change, extreme, garble
from tests.system.backups.hostile_objects import HOSTILE, SPECIAL, Hostile, Objects, plant, write_whole
from tests.unit.backups import scene

_BEFORE = 30


@functools.cache
def _whole() -> Objects:
    with tempfile.TemporaryDirectory(prefix="buckets-") as folder:
        return write_whole(Path(folder))


def _spoil(objects: Objects, chance: random.Random) -> None:
    """Change one or two objects. The marker fits the manifest in two of three cases."""
    fits = chance.random() < 0.66
    for name in chance.choices([MANIFEST, MANIFEST, MARKER, *objects], k=chance.choice((1, 1, 2))):
        if name not in objects:
            continue
        content = objects[name]
        if chance.random() < 0.1:
            del objects[name]
        elif name in (MANIFEST, MARKER) and chance.random() < 0.8:
            objects[name] = _change_document(content, chance).encode("utf-8", "surrogatepass")
        elif content:
            objects[name] = garble(content, chance)
    if fits and MANIFEST in objects:
        objects[MARKER] = manifests.dump_marker(objects[MANIFEST])


def _change_document(content: bytes, chance: random.Random) -> str:
    """The document with other values, at its top, in a file or in a part of a file."""
    try:
        document = json.loads(content)
        parts = [document]
        if chance.random() < 0.7 and document.get("files"):
            file = chance.choice(document["files"])
            parts = [file, *file["parts"]]
        inner = chance.choice(parts)
        text = chance.choice((change, extreme))(inner, chance)
        mark = json.dumps(inner)
        return json.dumps(document).replace(mark, text, 1)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):  # it was changed before
        return "{}"


def play(chance: random.Random) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="buckets-") as folder:
        root = Path(folder)
        store = scene.local_store(root / "bucket")
        scene.write_step(root / "here", _BEFORE, 5000)
        list(sync.run_round(scene.upload(store, root / "here"), None))
        for number in range(1, chance.randrange(2, 4)):
            is_known = chance.random() < 0.15
            changed = chance.choice(HOSTILE) if is_known else Hostile("", "", lambda objects: _spoil(objects, chance))
            made = plant(store, _whole(), number, changed)
            if chance.random() < 0.1:
                with contextlib.suppress(OSError):
                    chance.choice(list(SPECIAL.values()))[1](Path(store.root, made))
        return _judge(root, chance)


def _judge(root: Path, chance: random.Random) -> list[str]:
    """What is wrong after the commands. Only UserError is an expected end."""
    problems: list[str] = []
    store = scene.local_store(root / "bucket")
    found = scene.list_backups(store)
    if _BEFORE not in [one.step for one in found if one.complete]:
        problems.append("the whole backup does not count as complete")
    for one in found:
        if one.complete:
            with contextlib.suppress(UserError):
                sync.verify(store, one)
    there = scene.places(root / "there")
    pulled = pull.restore_newest(store, scene.RUN, there)
    if pulled is None:
        problems.append("no backup is restored")
    else:
        problems += _compare(root, pulled.step)
    keep = scene.local_store(root / "bucket", keep_last=chance.choice((1, 2)))
    list(sync.run_round(scene.upload(keep, root / "here"), None))
    if not any(one.complete for one in scene.list_backups(store)):
        problems.append("no complete backup is left")
    return problems


def _compare(root: Path, step: int) -> list[str]:
    """What was restored must be a checkpoint as it was saved."""
    scene.write_step(root / "saved", step, 5000)
    saved = scene.content(root / "saved" / "checkpoints" / f"step_{step}")
    restored = scene.content(root / "there" / "checkpoints" / f"step_{step}")
    saved.pop("COMPLETE.json")  # it has the time of the save
    restored.pop("COMPLETE.json", None)
    shutil.rmtree(root / "saved")
    return [] if restored == saved else [f"step {step} is restored with another content"]


if __name__ == "__main__":
    os.fsync = lambda fd: None  # noqa: ARG005 - no power is cut here, and the name is that of the function
    sys.exit(series.play("tests.fuzz.buckets", play, sys.argv[1:]))
