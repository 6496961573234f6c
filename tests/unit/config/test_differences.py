"""`list_differences`: values that differ between two runs, by their keys."""

from dataclasses import replace

from prime_train.config.differences import Difference, list_differences
from prime_train.spec import Run, RunSpec
from prime_train.spec.data import Data, Source

_RUN = RunSpec(run=Run(name="a", max_steps=10), data=Data(sources=(Source(kind="files", path="a.txt"),)))


def test_a_run_does_not_differ_from_itself() -> None:
    assert list_differences(_RUN, _RUN) == ()


def test_a_value_below_a_table_and_one_below_a_list_are_named() -> None:
    other = replace(
        _RUN,
        optim=replace(_RUN.optim, lr=1e-5),
        data=replace(_RUN.data, sources=(replace(_RUN.data.sources[0], path="b.txt"),)),
    )
    assert set(list_differences(_RUN, other)) == {
        Difference("optim.lr", _RUN.optim.lr, 1e-5),
        Difference("data.sources.0.path", "a.txt", "b.txt"),
    }


def test_a_table_that_only_one_side_has_is_none_on_the_other() -> None:
    found = list_differences(_RUN, replace(_RUN, data=replace(_RUN.data, sources=())))
    assert Difference("data.sources.0.path", "a.txt", None) in found
