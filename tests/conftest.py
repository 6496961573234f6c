"""What holds for every test: properties are not timed, and nothing is read from or left in the user's own cache."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

# Judged by what they say, never by how long they took: a busy machine fails no test.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# `make mutants` runs the tests once per mutant: the same few examples each time, and no search for a smaller one.
settings.register_profile(
    "mutants",
    settings.get_profile("untimed"),
    derandomize=True,
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],
)
# CI runs the same examples each time, so that a change lands or fails by itself. `make test` looks for new ones.
settings.register_profile("repeatable", settings.get_profile("untimed"), derandomize=True)
settings.load_profile("untimed")

# Several workers share the cores. With a thread per core, each training burns three times the time in waiting loops.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests that a shell has put into the background ignore Ctrl-C, and so would every program that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prices, tables of prime-rl and tokenizers that a developer keeps must not decide a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIME_TRAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))  # their backups are not ours to write
        patch.setenv("PRIME_TRAIN_METADATA", "off")  # a runner of GitHub is a machine of Azure: ask nothing there
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep modules and tests out of the garbage collector: each full collection would visit a million objects.

    They live as long as the process. A child that a test forks also shares their memory as long as nothing visits them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker takes all tests of a file, because they share fixtures; `spread` marks those that share nothing."""
    for item in items:
        if item.get_closest_marker("spread") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
