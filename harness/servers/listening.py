"""Who listens at an address: the process, as far as it runs on this machine, and whether two addresses are one."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import psutil

_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Servers print these as their address; who connects there reaches this machine."""
_RESOLVE_S = 1.0
"""For names that two addresses are compared by: without a name server a look-up takes many seconds."""


def listener(url: str) -> int | None:
    """The process of this machine that listens at an address; None where it is elsewhere or not ours to see."""
    host, port = urlsplit(url).hostname, port_of(url)
    found = None if host is None else listening(addresses(host), port)
    return None if found is None else found[1]


def same_place(url: str, other: str) -> bool:
    """Whether two addresses surely lead to one server: by their words, or to one socket or process of this machine.

    Two names of one address elsewhere may be two servers behind one gateway, which tells them apart by name. Names that
    do not resolve, or not in a second, are compared as they are written.
    """
    (host, *place), (other_host, *other_place) = _parts(url), _parts(other)
    if place != other_place:
        return False
    if host == other_host:
        return True
    found, other_found = _soon(host, other_host)
    if any(map(_is_here, set(found) & set(other_found))):
        return True
    port = port_of(url)
    here, there = listening(found, port), listening(other_found, port)
    if here is None or there is None:
        return False
    return here[0] == there[0] or (here[1] is not None and here[1] == there[1])


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
    return tuple(dict.fromkeys(_plain(address) for address in found))


def port_of(url: str) -> int:
    """The port of an address, its scheme's where it names none."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _parts(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    return parts.hostname or "", port_of(url), parts.path.rstrip("/")


def _soon(*hosts: str) -> list[tuple[str, ...]]:
    """`addresses` of each name; none where they take too long."""
    found: dict[str, tuple[str, ...]] = {}

    def look(host: str) -> None:
        found[host] = addresses(host)

    # A look-up cannot be called off; a daemon does not keep the command from ending.
    looks = [threading.Thread(target=look, args=(host,), daemon=True) for host in hosts]
    deadline = time.monotonic() + _RESOLVE_S
    for each in looks:
        each.start()
    for each in looks:
        each.join(max(deadline - time.monotonic(), 0.0))
    return [found.get(host, ()) for host in hosts]


def _plain(address: str) -> str:
    mapped = ipaddress.IPv6Address(address).ipv4_mapped if ":" in address else None
    plain = address if mapped is None else str(mapped)
    return _HERE.get(plain, plain)


def _is_here(address: str) -> bool:
    if ipaddress.ip_address(address).is_loopback:
        return True
    ours = (each.address for known in psutil.net_if_addrs().values() for each in known)
    return address in ours
