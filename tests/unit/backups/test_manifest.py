"""The manifest's text: what was written is read, and nothing that leads out of a folder or contradicts itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.backups import manifest as manifests
from prime_train.backups.manifest import File, Manifest, ManifestError, ObjectPart

ID = "0123456789abcdef"


def sha(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def part(text: bytes) -> ObjectPart:
    return ObjectPart(sha(text), hashlib.md5(text).hexdigest(), len(text), len(text), sha(text))


def file(name: str, *pieces: bytes, root: str = "checkpoints") -> File:
    whole = b"".join(pieces)
    return File(root, name, len(whole), sha(whole), tuple(map(part, pieces)))


GOOD = Manifest("run", 40, ID, 1.5, (file("a/model.distcp", b"one", b"two"), file("b", b"3"), file("empty")))


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert manifests.parse(manifests.dump(GOOD), "run", 40, ID) == GOOD


def test_the_marker_belongs_to_one_manifest() -> None:
    text = manifests.dump(GOOD)
    manifests.parse_marker(manifests.dump_marker(text), text)
    with pytest.raises(ManifestError, match="another"):
        manifests.parse_marker(manifests.dump_marker(text), text + b" ")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: d["files"][0].update(name="../../../etc/passwd"), "no name"),
        (lambda d: d["files"][0].update(name="/etc/passwd"), "no name"),
        (lambda d: d["files"][0].update(name="a//b"), "no name"),
        (lambda d: d["files"][0].update(name="a\\b"), "no name"),
        (lambda d: d["files"][0].update(name="a\x00b"), "no name"),
        (lambda d: d["files"][0].update(root="../elsewhere"), "no folder"),
        (lambda d: d["files"][0].update(root="/root"), "no folder"),
        (lambda d: d["files"][1].update(name="a/model.distcp"), "twice"),
        (lambda d: d["files"][1].update(name="a"), "below a file"),
        (lambda d: d["files"][0].update(size_bytes=7), "add up"),
        (lambda d: d["files"][0].update(size_bytes=-6), r"files\.0\.size_bytes: .*greater"),
        (lambda d: d["files"][0].update(size_bytes=True), r"files\.0\.size_bytes: .*integer"),
        (lambda d: d["files"][0].update(size_bytes=2**60), r"files\.0\.size_bytes: .*less"),
        (lambda d: d["files"][0].update(sha256="../x"), "no hash"),
        (lambda d: d["files"][0]["parts"][0].update(sha256="a/../../b"), "no hash"),
        (lambda d: d["files"][0]["parts"][0].update(stored_bytes=1), "contradict"),
        (lambda d: d["files"][0]["parts"][0].update(packed="yes"), r"files\.0\.parts\.0\.packed: .*boolean"),
        (lambda d: d.update(files=[]), "no file"),
        (lambda d: d.update(files={}), "files: .*array"),
        (lambda d: d.update(step=50), "another run or step"),
        (lambda d: d.update(version=2), "version"),
        (lambda d: d.update(saved_s="now"), "saved_s: .*number"),
    ],
)
def test_a_hostile_manifest_is_refused(change: Callable[[dict[str, Any]], None], match: str) -> None:
    document = json.loads(manifests.dump(GOOD))
    change(document)
    with pytest.raises(ManifestError, match=match):
        manifests.parse(json.dumps(document).encode(), "run", 40, ID)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    with pytest.raises(ManifestError):
        manifests.parse(text, "run", 40, ID)


@given(st.text(max_size=40))
def test_a_name_that_is_accepted_stays_below_its_folder(name: str) -> None:
    if manifests.is_safe_name(name):
        path = PurePosixPath("/base") / name
        assert path.is_relative_to("/base")
        assert ".." not in path.parts
        assert path != PurePosixPath("/base")


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        (f"step_40.{ID}", (40, ID)),
        (f"step_0.{ID}", (0, ID)),
        (f"step_040.{ID}", None),
        ("step_40", None),
        (f"step_40.{ID}x", None),
        (f"step_99999999999999999999.{ID}", None),
    ],
)
def test_only_folders_of_our_own_form_count(name: str, parsed: tuple[int, str] | None) -> None:
    assert manifests.parse_folder(name) == parsed


def test_the_identity_depends_on_content_and_not_on_order() -> None:
    entries = [("checkpoints", "a", 1, sha(b"1")), ("checkpoints", "b", 1, sha(b"2"))]
    assert manifests.identify(entries) == manifests.identify(entries[::-1])
    assert manifests.identify(entries) != manifests.identify(entries[:1])
