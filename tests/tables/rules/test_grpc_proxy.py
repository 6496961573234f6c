"""A host is reached past a proxy as gRPC does it: by the end of its name or its network, in small letters alone."""

from __future__ import annotations

import pytest

from prime_train.rules.explain import BASES
from prime_train.rules.judge import lint
from prime_train.rules.machine.grpc_proxy import bypasses_proxy


@pytest.mark.parametrize(
    ("host", "no_proxy", "passed"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", " localhost , 10.0.0.0/8 ", True),
        ("10.0.0.1", "11.0.0.0/8", False),
        ("10.0.0.1", "10.0.0.0/99", False),
        ("10.0.0.1", ",,", False),
        ("node0.Internal", ".internal", True),
        ("node0.internal", "*.internal", False),
        ("node0.internal", "10.0.0.0/8", False),
        ("fd00::1", "fd00::/8", True),
        ("", "", False),
    ],
)
def test_a_host_bypasses_proxy_by_the_end_of_its_name_or_its_network(host: str, no_proxy: str, passed: bool) -> None:
    assert bypasses_proxy(host, no_proxy) is passed


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"https_proxy": "http://p"}, ["VAR007"]),
        ({"https_proxy": "http://p", "no_proxy": "10.0.0.0/8"}, []),
        ({"https_proxy": "http://p", "NO_PROXY": "10.0.0.1"}, ["VAR007"]),
        ({"https_proxy": "http://p", "no_grpc_proxy": "x", "no_proxy": "10.0.0.1"}, ["VAR007"]),
        ({"HTTPS_PROXY": "http://p"}, []),
        ({"grpc_proxy": "", "https_proxy": "http://p"}, []),
    ],
)
def test_the_variables_of_a_config_are_judged_by_the_same_rules(variables: dict[str, str], expected: list[str]) -> None:
    lines = [f'{name} = "{value}"' for name, value in variables.items()]
    table = ["[env_vars]", 'JAX_COORDINATOR_ADDRESS = "10.0.0.1:1234"', 'JAX_ENABLE_PREEMPTION_SERVICE = "0"', *lines]
    verdict = lint(BASES["prime-rl 2026-08"] + "\n".join([*table, ""]), "rl.toml", "2026-08")
    assert [finding.code for finding in verdict.findings] == expected
