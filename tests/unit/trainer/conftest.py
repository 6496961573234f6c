"""What the tests of the trainer share: a small corpus, tokenised once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.trainer.tiny import write_texts


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of documents, and a cache of its own for what is made from them."""
    root = tmp_path_factory.mktemp("texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIME_TRAIN_CACHE", str(root / "cache"))
        yield write_texts(root / "documents")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread of torch, because a model is too small to share among cores."""
    import torch  # here, because tests of this folder run without torch too

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
