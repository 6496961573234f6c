"""The address on which a machine is reached."""

import socket

import psutil
import pytest

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import Machines
from prime_train.supervise.machines import protocol


def test_an_address_is_its_own_name() -> None:
    assert protocol.resolve("127.0.0.2") == "127.0.0.2"


def test_a_name_without_an_address_is_named() -> None:
    with pytest.raises(UserError) as caught:
        protocol.resolve("no-such-host.invalid")
    assert caught.value.where == "no-such-host.invalid"
    assert caught.value.exit_code == ExitCode.OUT_OF_REACH


def test_a_name_that_is_loopback_here_is_not_the_address_for_others() -> None:
    """Debian names its own machine 127.0.1.1. The source of a packet to the other machine is what the other sees."""
    own = [one.address for found in psutil.net_if_addrs().values() for one in found if one.family == socket.AF_INET]
    outside = next((address for address in own if not address.startswith("127.")), None)
    if outside is None:
        pytest.skip("this machine has no interface but loopback")
    assert protocol.find_own(Machines(0, ("127.0.1.1", outside))) == outside
    assert protocol.find_interface(outside) != "lo"


def test_the_interface_of_loopback_is_lo() -> None:
    assert protocol.find_interface("127.0.0.2") == "lo"
    assert protocol.find_interface("203.0.113.9") == ""
