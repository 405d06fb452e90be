"""The process of this machine that listens at an address."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

import psutil

_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Servers print these as their address; who connects there reaches this machine."""


def listener(url: str) -> int | None:
    """The process of this machine that listens at an address; None where it is elsewhere or not ours to see."""
    host, port = urlsplit(url).hostname, port_of(url)
    found = None if host is None else listening(addresses(host), port)
    return None if found is None else found[1]


def listening(tried: Sequence[str], port: int) -> tuple[str, int | None] | None:
    """The socket of this machine that takes connections to the first of the addresses that has one.

    Parameters:
        tried: addresses in the order in which a client tries them.

    Returns:
        The address it is bound to, and its process where that is ours to see; None where there is no such socket.
    """
    here = [address for address in tried if _is_here(address)]
    if not here:
        return None
    try:
        bound = {
            connection.laddr.ip: connection.pid
            for connection in psutil.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        }
    except (OSError, psutil.Error):
        return None
    for address in here:
        # The system prefers a socket that is bound to the very address; one bound to :: takes IPv4 too.
        for candidate in (address, *(() if ":" in address else ("0.0.0.0",)), "::"):
            if candidate in bound:
                return candidate, bound[candidate]
    return None


def addresses(host: str) -> tuple[str, ...]:
    """Addresses of a name in the order in which a client tries them; none where it does not resolve."""
    try:
        found = [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):  # the latter for what cannot be a name
        return ()
    return tuple(dict.fromkeys(_HERE.get(address, address) for address in found))


def port_of(url: str) -> int:
    """The port of an address, its scheme's where it names none."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _is_here(address: str) -> bool:
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return True
    ours = (each.address for known in psutil.net_if_addrs().values() for each in known)
    return address in ours
