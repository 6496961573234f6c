from __future__ import annotations

from prime_train.backups.inventory import StoredBackup
from prime_train.backups.manifest import Manifest
from prime_train.views.backups import status_json, status_rows

WHOLE = StoredBackup(20, "b", "x/20", 4096, 900.0, (), "", Manifest("x", 20, "b", 940.0, ()), pinned=True)
CUT = StoredBackup(30, "c", "x/30", 1024, 0.0, (), "no marker")


def test_the_newest_complete_backup_is_not_one_that_was_cut_short() -> None:
    found = status_json("x", "s3://bucket", [CUT, WHOLE], {20})
    assert found["newest_complete_step"] == 20
    assert [(one["step"], one["complete"], one["on_this_disk"]) for one in found["backups"]] == [
        (30, False, False),
        (20, True, True),
    ]
    assert found["backups"][0]["size_bytes"] is None


def test_a_row_has_the_age_and_the_remarks_of_a_backup() -> None:
    cut, whole = status_rows(status_json("x", "s3://bucket", [CUT, WHOLE], {20}), 1000.0)
    assert cut == ("30", "?", "1.0 KiB", "?", "", "no marker")
    assert whole == ("20", "0 B", "4.0 KiB", "1 min 00 s", "yes", "pinned")
