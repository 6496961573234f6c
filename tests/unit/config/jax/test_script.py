"""A script is read by what stands in it literally, whatever jax is called there; nothing of it runs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.config.jax import script
from prime_train.config.parsed_config import SYNTAX, WRONG_ARGUMENT, Reading
from prime_train.core.errors import UserError
from prime_train.spec.run_spec import Jax, JaxStart


def read(text: str) -> Reading:
    return script.read(text, "train.py")


def jax(text: str) -> Jax:
    run = read(text).run
    assert run is not None
    assert run.jax is not None
    return run.jax


@pytest.mark.parametrize(
    "text",
    [
        "import jax\njax.distributed.initialize(num_processes=2)\n",
        "import jax as j\nj.distributed.initialize(None, 2)\n",
        "import jax.distributed\njax.distributed.initialize(num_processes=2)\n",
        "import jax.distributed as d\nd.initialize(num_processes=2)\n",
        "from jax import distributed\ndistributed.initialize(num_processes=2)\n",
        "from jax.distributed import initialize as go\ngo(num_processes=2)\n",
        "def main():\n    import jax\n    if True:\n        jax.distributed.initialize(num_processes=2)\n",
    ],
)
def test_the_start_is_found_under_every_name(text: str) -> None:
    assert jax(text).starts == (JaxStart(num_processes=2, given=("num_processes",), passes_more=False),)


@pytest.mark.parametrize(
    "text",
    [
        "print('jax.distributed.initialize()')\n",
        "import jax\n# jax.distributed.initialize()\n",
        "import jax\njax.distributed.is_initialized()\n",
        "class jax:\n    distributed = None\njax.distributed.initialize()\n",
        "print(1)\n",
        "jax.distributed.initialize()\n" + "x = 1\n" * 40_000,
        "import jax\njax.distributed.initialize()\nx = f'" + "{a}" * 20_001 + "'\n",
    ],
)
def test_what_starts_nothing_or_is_no_script_is_refused(text: str) -> None:
    with pytest.raises(UserError) as refused:
        read(text)
    assert refused.value.where == "train.py"
    assert refused.value.fix


def test_literals_are_known_and_what_is_computed_is_only_given() -> None:
    found = jax(
        "import jax\n"
        "jax.distributed.initialize(address(), N, int(rank), [0, 1],\n"
        "    initialization_timeout=10 * 60, heartbeat_timeout_seconds=None, **more)\n"
    )
    given = (
        "coordinator_address",
        "num_processes",
        "process_id",
        "local_device_ids",
        "initialization_timeout_s",
    )
    assert found.starts == (
        JaxStart(local_device_ids=(0, 1), initialization_timeout_s=600, given=given, passes_more=True),
    )


def test_the_environment_is_what_stands_lowest() -> None:
    found = jax(
        "import os, jax\n"
        "from os import environ as env\n"
        "os.environ['A'] = '1'\n"
        "os.environ['A'] = '2'\n"
        "env.setdefault('B', str(3))\n"
        "os.environ.update({'C': '4'}, D='5')\n"
        "os.environ['E'] = '6'\n"
        "del os.environ['E']\n"
        "os.environ.pop('D', None)\n"
        "jax.config.update('jax_enable_preemption_service', False)\n"
        "jax.config.update('jax_platforms', chosen)\n"
        "jax.distributed.initialize()\n"
    )
    assert found.environment == {"A": "2", "B": None, "C": "4"}
    assert found.environment_is_known is True
    assert found.set_after_import == ("A", "B", "C", "D", "E")
    assert found.config == {"jax_enable_preemption_service": False, "jax_platforms": None}


@pytest.mark.parametrize("line", ["os.environ[name] = '1'", "os.environ.update(more)", "os.environ.update(**more)"])
def test_a_computed_variable_may_be_any(line: str) -> None:
    found = jax(f"import os\nimport jax\n{line}\njax.distributed.initialize()\n")
    assert (found.environment, found.environment_is_known) == ({}, False)


@pytest.mark.parametrize(
    "line",
    [
        "from jax.experimental.multihost_utils import reached_preemption_sync_point",
        "multihost_utils.reached_preemption_sync_point(step)",
        "manager = orbax.checkpoint.CheckpointManager(folder)",
        "signal.signal(signal.SIGTERM, stop)",
    ],
)
def test_who_asks_for_the_notice_answers_it(line: str) -> None:
    start = "import jax\njax.distributed.initialize()\n"
    assert jax(f"{start}{line}\n").answers_preemption
    assert not jax(start).answers_preemption


def test_an_argument_stands_where_its_name_begins_in_characters() -> None:
    text = 'import jax\né = "é"; jax.distributed.initialize(\n    "a:1", 4,\r\n    process_id = 3,\n)\n'
    document = read(text).document
    address = document.place(("jax", "distributed", "initialize", "coordinator_address"))
    number = document.place(("jax", "distributed", "initialize", "process_id"))
    call = document.nearest(("jax", "distributed", "initialize", "heartbeat_timeout_seconds"))
    assert address is not None
    assert number is not None
    assert call is not None
    assert (address.key, address.written) == ((3, 5, 3, 10), '"a:1"')
    assert (number.key[:2], number.value, number.written) == ((4, 5), (4, 18, 4, 19), "3")
    assert call.key == (2, 10, 2, 36)


def test_a_value_with_a_password_is_not_repeated() -> None:
    text = "import os, jax\nos.environ['https_proxy'] = 'http://me:hunter22@proxy:1'\njax.distributed.initialize()\n"
    place = read(text).document.place(("os", "environ", "https_proxy"))
    assert place is not None
    assert place.written == ""


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("import jax\njax.distributed.initialize(num_processes=4,,)\n", 2, 44),
        ("import jax\n\njax.distributed.initialize(\n", 3, 27),
        ("import jax\nif True:\njax.distributed.initialize()\n", 3, 1),
    ],
)
def test_what_is_no_python_is_placed_exactly(text: str, line: int, column: int) -> None:
    reading = read(text)
    assert [fault.code for fault in reading.faults] == [SYNTAX]
    assert reading.run is None
    assert reading.document.fault is not None
    assert reading.document.fault.span[:2] == (line, column)


@pytest.mark.parametrize("text", ["\0", "x = " + "(" * 100_000, "x = " + "9" * 5000, "x = 1" + "+1" * 60_000])
def test_what_python_itself_does_not_parse_is_a_fault(text: str) -> None:
    assert [fault.code for fault in read(f"import jax\njax.distributed.initialize()\n{text}\n").faults] == [SYNTAX]


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("coordinator_adress='a:1'", "did you mean coordinator_address?"),
        ("num_processes='4'", "num_processes is not a whole number"),
        ("heartbeat_timeout_seconds=30.5", "heartbeat_timeout_seconds is not a whole number"),
        ("coordinator_address=1", "coordinator_address is not a string"),
        ("local_device_ids='0'", "local_device_ids is not a list of whole numbers"),
        ("process_id=True", "process_id is not a whole number"),
        ("quantum=1", "takes no quantum (JAX 0.10.2)"),
    ],
)
def test_an_argument_that_initialize_does_not_take_is_a_fault(argument: str, says: str) -> None:
    faults = read(f"import jax\njax.distributed.initialize({argument})\n").faults
    assert [fault.code for fault in faults] == [WRONG_ARGUMENT]
    assert faults[0].what.endswith(says)


def test_reading_runs_nothing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    read(f"import jax\nopen({str(touched)!r}, 'w')\njax.distributed.initialize(num_processes=exit())\n")
    assert not touched.exists()


_ARGUMENTS = st.sampled_from(
    ("'10.0.0.1:1'", "'h'", "None", "-1", "2", "x", "2.5", "[0]", "[a]", "1 * 2", "'é'", "f'{a}'", "*a", "(0,)", "{}")
)
_NAMED = st.tuples(st.sampled_from(("num_processes", "process_id", "heartbeat_timeout_seconds", "nu", "é")), _ARGUMENTS)
_LINES = st.sampled_from(
    (
        "os.environ['https_proxy'] = 'http://p'",
        "os.environ[x] = 1",
        "os.environ.update(no_proxy=1, **x)",
        "os.environ.update({**x, 'a': 'b'})",
        "del os.environ['https_proxy'], os.environ[x]",
        "os.environ.pop()",
        "jax.config.update('jax_enable_preemption_service', True)",
        "jax.config.update('a.b', 1)",
        "x: int = 1; y = z = os.environ['a']",
    )
)


@given(st.lists(_ARGUMENTS, max_size=5), st.lists(_NAMED, max_size=4), st.lists(_LINES, max_size=5))
@settings(max_examples=150)
def test_every_fault_and_field_of_any_call_has_a_place(
    arguments: list[str], named: list[tuple[str, str]], lines: list[str]
) -> None:
    keywords = [f"{name}={value}" for name, value in dict(named).items() if not value.startswith("*")]
    call = f"jax.distributed.initialize({', '.join([*arguments, *keywords])})"
    text = "\n".join(["import os, jax", *lines, call, call, ""])
    ast.parse(text)
    reading = read(text)
    second = reading.document.nearest(("jax", "distributed", "initialize", 1))
    assert second is not None
    assert second.key.line == len(text.splitlines())
    for fault in reading.faults:
        place = reading.document.place(fault.key)
        assert place is not None
        assert fault.what
        assert fault.fix
