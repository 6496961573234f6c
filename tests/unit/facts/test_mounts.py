from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.facts.host import Mount, mount_of

TABLE = """\
22 27 0:21 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/a
23 22 0:22 / /mnt/runs rw - nfs4 server:/export rw,vers=4.2
24 23 0:23 / /mnt/runs/with\\040blank rw master:2 propagate_from:3 - tmpfs tmpfs rw
25 22 8:1 / /data rw - ext4 /dev/sda1 rw
26 22 8:2 / /data rw - fuse.s3fs bucket rw
torn line
"""


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/home", Mount("/", "overlay")),
        ("/mnt/runs", Mount("/mnt/runs", "nfs4")),
        ("/mnt/runs/mine/deep", Mount("/mnt/runs", "nfs4")),
        ("/mnt/runs2", Mount("/", "overlay")),
        ("/mnt/runs/with blank/x", Mount("/mnt/runs/with blank", "tmpfs")),
        ("/data/x", Mount("/data", "fuse.s3fs")),
    ],
)
def test_the_mount_that_a_path_lies_on(tmp_path: Path, path: str, mount: Mount) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    assert mount_of(Path(path), table) == mount


def test_this_machine_names_one() -> None:
    assert mount_of(Path("/proc/self").resolve()) == Mount("/proc", "proc")


def test_a_table_that_names_none(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("")
    assert mount_of(Path("/home"), table) is None
