from __future__ import annotations

import os
import resource

from prime_train.supervise.launch.environment import read_host


def test_the_host_is_this_process() -> None:
    found = read_host("1:2")
    assert (found.environment, found.supervisor) == (os.environ, "1:2")
    assert found.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 1 <= found.cores <= (os.cpu_count() or 1)
