from __future__ import annotations

import os
import resource

from prime_train.supervise.launch.environment import host


def test_it_is_this_process_that_is_told() -> None:
    found = host("1:2")
    assert (found.environment, found.supervisor) == (os.environ, "1:2")
    assert found.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert found.cores >= 1
