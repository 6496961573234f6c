from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from prime_train.core.errors import explain_disk_error


@pytest.mark.parametrize(
    ("number", "named", "command"),
    [
        (errno.EDQUOT, "quota", "quota -s"),
        (errno.EROFS, "read-only", "findmnt"),
        (errno.ENOSPC, "no space", "df -h"),
        (errno.EFBIG, "larger", "ulimit -f"),
        (errno.EIO, "input/output", "dmesg"),
        (errno.EACCES, "Permission denied", "ls -ld"),
    ],
)
def test_each_error_has_its_own_name_and_fix(number: int, named: str, command: str, tmp_path: Path) -> None:
    found = explain_disk_error(number, tmp_path)
    assert named in found.what
    assert command in found.fix


def test_only_a_disk_without_space_is_reported_to_free_space(tmp_path: Path) -> None:
    numbers = (errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EACCES, errno.ENOENT)
    assert not any("free space" in explain_disk_error(number, tmp_path).fix for number in numbers)


def test_a_disk_without_inodes_is_reported_from_one_without_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    counts = [getattr(real, name) for name in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail")]
    none_left = os.statvfs_result((*counts, 1000, 0, 0, real.f_flag, real.f_namemax))
    monkeypatch.setattr(os, "statvfs", lambda _: none_left)
    found = explain_disk_error(errno.ENOSPC, tmp_path / "not" / "made")
    assert "no inodes left" in found.what
    assert "df -i" in found.fix
