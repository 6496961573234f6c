"""Tracebacks are put together and made short."""

from __future__ import annotations

from prime_train.diagnose.tracebacks import Builder, Raised, root, shorten


def _built(text: str) -> tuple[Raised, ...]:
    builder = Builder(1, 1)
    for at, line in enumerate(text.strip("\n").split("\n"), 1):
        builder.add(line, at)
    return builder.chain


FRAME = '  File "/app/{0}.py", line {1}, in {0}\n    {0}()\n    ^^^^^\n'
LIBRARY = '  File "/venv/lib/python3.11/site-packages/torch/x.py", line 9, in x\n    raise E\n'
HEADER = "Traceback (most recent call last):\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def test_one_exception() -> None:
    (raised,) = _built(HEADER + FRAME.format("train", 7) + LIBRARY + "torch.X: no\n")
    assert (raised.text, raised.at) == ("torch.X: no", 7)
    assert shorten(raised) == (
        "torch.X: no",
        "/app/train.py:7 in train",
        "/venv/lib/python3.11/site-packages/torch/x.py:9 in x",
    )


def test_of_a_chain_the_first_is_the_root() -> None:
    chain = _built(
        HEADER + FRAME.format("a", 1) + "ValueError: one\n" + CAUSE + HEADER + LIBRARY + "RuntimeError: two\n"
    )
    assert [raised.text for raised in chain] == ["ValueError: one", "RuntimeError: two"]
    assert root(chain).text == "ValueError: one"


def test_an_exception_by_which_code_feels_its_way_is_no_root() -> None:
    chain = _built(HEADER + LIBRARY + "StopIteration\n" + CONTEXT + HEADER + LIBRARY + "a.NotThere: vllm\n")
    assert root(chain).text == "a.NotThere: vllm"
    chain = _built(HEADER + LIBRARY + "ValueError: x\n" + CONTEXT + HEADER + LIBRARY + "OSError: while closing\n")
    assert root(chain).text == "ValueError: x"


def test_a_group_gives_place_to_what_it_holds() -> None:
    group = "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
    chain = _built(HEADER + LIBRARY + group + HEADER + FRAME.format("a", 1) + "ValueError: inside\n")
    assert root(chain).text == "ValueError: inside"


def test_lines_of_others_in_between_are_left_to_them() -> None:
    builder = Builder(1, 1)
    assert builder.add('  File "/app/a.py", line 1, in f', 1) == "own"
    assert builder.add("wandb: Syncing run demo", 2) == "foreign"
    assert builder.add("some words of another process", 3) == "foreign"
    assert builder.add("ValueError: mine", 4) == "own"
    assert builder.add("another line", 5) == "over"
    assert [raised.text for raised in builder.chain] == ["ValueError: mine"]


def test_a_recursion_of_thousands_of_frames_is_kept_small() -> None:
    (raised,) = _built(HEADER + FRAME.format("f", 1) * 3000 + "RecursionError: too deep\n")
    assert len(raised.frames) <= 400
