"""Packing and restoring lose nothing, wherever a kill comes, and need the room of one segment."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.checkpoints import layout
from prime_train.checkpoints.packing import archive, packing_plan
from prime_train.checkpoints.packing.archive import DamagedError
from prime_train.checkpoints.packing.packing_plan import Sizes
from prime_train.core.errors import UserError
from tests.unit.checkpoints.packing.test_planes import numbers

SMALL = Sizes(segment_bytes=3000, piece_bytes=1000, smallest_bytes=1)
OVERHEAD_BYTES = 600  # of a segment: the heads of its pieces and planes
KILLED = 9
_EFFECTS = {"open", "os.remove", "os.rename", "os.truncate"}

Files = dict[str, bytes]
FILES: Files = {"__0_0.distcp": numbers("f", 2300), "deeper/__1_0.distcp": numbers("H", 1000), ".metadata": b""}


def write(root: Path, files: Files = FILES, step: int = 5) -> Path:
    """A complete checkpoint with this content."""
    folder = root / f"step_{step}"
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    layout.write_manifest(folder, step)
    return folder


def content(folder: Path) -> Files:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != layout.MANIFEST)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def size_bytes(folder: Path) -> int:
    return sum(map(len, content(folder).values()))


def doing(verb: str, folder: Path, sizes: Sizes) -> Callable[[], None]:
    return partial(archive.restore, folder) if verb == "restore" else partial(archive.compress, folder, sizes)


def survives(work: Callable[[], None], folder: Path, effects: int | None) -> bool:
    """Do `work` in a process that is gone, unasked, before it changes or opens a file for the n-th time.

    True where it came to its end. No handler and no buffer of it is served: it ends as kill -9 ends it.
    """
    pid = os.fork()
    if not pid:
        try:
            if effects is not None:
                _die_after(effects, folder)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, KILLED)
    return ended == 0


def _die_after(effects: int, folder: Path) -> None:
    left = effects

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in _EFFECTS and str(arguments[0]).startswith(str(folder)):
            left -= 1
            if left < 0:
                os._exit(KILLED)

    sys.addaudithook(count)


actions = st.tuples(
    st.sampled_from(["compress", "restore"]), st.none() | st.integers(0, 40), st.sampled_from([1000, 3000, 10**6])
)
files = st.dictionaries(
    st.sampled_from(["a", "a.planes.0", "b/a", ".metadata"]),
    st.integers(0, 2500).map(lambda count: numbers("f", 2500)[-4 * count - 1 :]) | st.binary(max_size=20),
    min_size=1,
).map(lambda saved: {".metadata": b"what is where", "a": b"a tensor"} | saved)  # without both it is no checkpoint


@settings(deadline=None, max_examples=60)
@given(saved=files, history=st.lists(actions, max_size=6))
def test_no_history_of_kills_leaves_anything_but_the_whole_checkpoint(
    saved: Files, history: list[tuple[str, int | None, int]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = write(Path(root), saved)
        for verb, effects, segment_bytes in history:
            sizes = Sizes(segment_bytes, 1000, 1)
            survives(doing(verb, folder, sizes), folder, effects)
            assert layout.inspect(folder, hashes=True).problem == ""
        archive.restore(folder)
        assert content(folder) == saved


@pytest.mark.parametrize("verb", ["compress", "restore"])
def test_a_kill_at_each_step_needs_no_more_than_one_segment_of_room(tmp_path: Path, verb: str) -> None:
    effects, ended = 0, False
    while not ended:
        folder = write(tmp_path / str(effects))
        if verb == "restore":
            archive.compress(folder, SMALL)
        ended = survives(doing(verb, folder, SMALL), folder, effects)
        assert layout.inspect(folder, hashes=True).complete
        assert size_bytes(folder) <= sum(map(len, FILES.values())) + SMALL.segment_bytes + OVERHEAD_BYTES
        effects += 1
    assert effects > 20


def test_what_is_packed_is_smaller_complete_and_reported(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert not packing_plan.is_packed(folder)
    done: list[int] = []
    expected = packing_plan.work_bytes(folder, SMALL)
    archive.compress(folder, SMALL, done.append)
    assert sum(done) == expected == size_bytes(write(tmp_path, step=6))
    assert packing_plan.is_packed(folder)
    found = packing_plan.measure(folder)
    assert found.stored_bytes == size_bytes(folder) < found.size_bytes == sum(map(len, FILES.values()))
    assert 0.1 < found.saved < 0.3
    archive.compress(folder, SMALL)  # nothing is left to do
    assert layout.newest_complete(tmp_path) == layout.inspect(tmp_path / "step_6")
    assert packing_plan.work_bytes(folder, SMALL) == 0


@pytest.mark.parametrize("verb", ["compress", "restore"])
def test_what_a_kill_left_is_seen_until_it_is_cleared(tmp_path: Path, verb: str) -> None:
    seen = 0
    for effects in range(24):
        folder = write(tmp_path / str(effects))
        if verb == "restore":
            archive.compress(folder, SMALL)
        assert not packing_plan.has_leftovers(folder)
        survives(doing(verb, folder, SMALL), folder, effects)
        seen += packing_plan.has_leftovers(folder)
        doing(verb, folder, SMALL)()
        assert not packing_plan.has_leftovers(folder)
    assert seen


def test_small_files_stay_as_they_are(tmp_path: Path) -> None:
    folder = write(tmp_path)
    archive.compress(folder)
    assert content(folder) == FILES


def test_a_file_that_is_not_as_it_was_saved_is_not_packed(tmp_path: Path) -> None:
    folder = write(tmp_path)
    damaged = folder / "__0_0.distcp"
    damaged.write_bytes(damaged.read_bytes()[::-1])
    before = content(folder)
    with pytest.raises(DamagedError, match=r"__0_0.distcp does not match its SHA-256"):
        archive.compress(folder, SMALL)
    assert content(folder) == before


def test_a_file_that_is_gone_is_reported_before_anything_is_done(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "deeper" / "__1_0.distcp").unlink()
    before = content(folder)
    with pytest.raises(DamagedError, match=r"deeper/__1_0.distcp is missing"):
        archive.compress(folder, SMALL)
    assert content(folder) == before


@pytest.mark.parametrize("place", [3, 40, 900, -1])
def test_a_flipped_bit_in_a_segment_is_found_and_the_rest_kept(tmp_path: Path, place: int) -> None:
    folder = write(tmp_path)
    archive.compress(folder, SMALL)
    damaged = folder / "__0_0.distcp.planes.3200"
    bits = bytearray(damaged.read_bytes())
    bits[place] ^= 16
    damaged.write_bytes(bits)
    assert layout.inspect(folder).complete  # its sizes are unchanged
    assert layout.inspect(folder, hashes=True).problem
    with pytest.raises(DamagedError, match=r"__0_0.distcp.planes.3200 does not unpack"):
        archive.restore(folder)
    assert (folder / "__0_0.distcp").read_bytes() == FILES["__0_0.distcp"][:3200]
    assert (folder / "__0_0.distcp.planes.6200").exists()


@pytest.mark.parametrize("lost", ["__0_0.distcp.planes.0", "deeper/__1_0.distcp.planes.0"])
def test_a_lost_or_cut_segment_is_found_by_its_size(tmp_path: Path, lost: str) -> None:
    folder = write(tmp_path)
    archive.compress(folder, SMALL)
    stored_bytes = (folder / lost).stat().st_size
    os.truncate(folder / lost, 100)
    assert layout.inspect(folder).problem == f"{lost} has 100 of {stored_bytes} bytes"
    (folder / lost).unlink()
    assert layout.inspect(folder).problem == f"{lost} is missing"


@pytest.mark.parametrize("full", ["compress", "restore"])
def test_a_full_disk_is_reported_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    folder = write(tmp_path)
    if full == "restore":
        archive.compress(folder, SMALL)
    before = content(folder)

    def refuse(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(UserError, match="No space left on device"):
            doing(full, folder, SMALL)()
    assert content(folder) == before
    assert layout.inspect(folder, hashes=True).complete


def test_ranks_that_share_the_check_read_packed_files_too(tmp_path: Path) -> None:
    folder = write(tmp_path)
    archive.compress(folder, SMALL)
    for part in range(3):
        assert layout.problem(folder, on_read=lambda _: None, part=part, parts=3) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../../secret"},
        {"file": "__0_0.distcp"},
        {"file": layout.MANIFEST},
        {"start": -1},
        {"start": 10**6},
    ],
    ids=lambda change: "-".join(map(str, change.items())),
)
def test_a_packed_part_that_is_none_makes_the_checkpoint_broken(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = write(tmp_path)
    archive.compress(folder, SMALL)
    manifest = json.loads((folder / layout.MANIFEST).read_text())
    manifest["files"]["__0_0.distcp"]["packed"]["segments"][0] |= change
    (folder / layout.MANIFEST).write_text(json.dumps(manifest))

    assert layout.inspect(folder).problem.startswith("COMPLETE.json is unreadable")
    with pytest.raises(ValueError, match=r"packed part|sizes"):
        archive.restore(folder, sizes=SMALL)


@pytest.mark.parametrize("verb", ["compress", "restore"])
@pytest.mark.parametrize("planted", ["head", "segment", "folder"])
def test_no_file_outside_is_changed_through_a_link(tmp_path: Path, verb: str, planted: str) -> None:
    """A link in the place of a packed file's head, of a segment to write, or of a folder."""
    folder, victim = write(tmp_path), tmp_path / "victim"
    if verb == "restore":
        archive.compress(folder, SMALL)
    victim.mkdir()
    kept = victim / "kept"
    kept.write_bytes(b"kept")
    if planted == "folder":
        (folder / "deeper").rename(victim / "deeper")
        (folder / "deeper").symlink_to(victim / "deeper")
    else:
        name = "__0_0.distcp" if planted == "head" else "__0_0.distcp.planes.77"
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(kept)
    before = content(victim)

    with contextlib.suppress(DamagedError):
        doing(verb, folder, SMALL)()

    assert content(victim) == before
