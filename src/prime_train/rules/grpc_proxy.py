"""Which variables of a proxy gRPC reads, and which hosts it reaches past one. Pure.

Source: grpc@0638416, src/core/handshaker/http_connect/http_proxy_mapper.cc. Seen with JAX 0.10.1 on a CPU: a start
through https_proxy ends in its time limit, with no_proxy = 127.0.0.0/8 or under HTTPS_PROXY it comes up.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # the first that is set counts; an empty one is none
NO_PROXIES = ("no_grpc_proxy", "no_proxy")


def is_passed(host: str, no_proxy: str) -> bool:
    """Whether gRPC goes to a host past the proxy: by the end of its name, or by a network that it is in."""
    parts = [part.strip() for part in no_proxy.split(",") if part.strip()]
    return any(host.lower().endswith(part.lower()) or _is_in(host, part) for part in parts)


def _is_in(host: str, network: str) -> bool:
    try:
        return "/" in network and ip_address(host) in ip_network(network, strict=False)
    except ValueError:  # a name, or no network
        return False
