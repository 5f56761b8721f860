"""Names and addresses of machines, as peers and launchers tell them: they become words of commands and of
messages.
"""

from __future__ import annotations

import ipaddress
import re
import socket

_LABELS = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?\Z", re.ASCII
)
"""RFC 1123, section 2.1, and the underscore, which machines do have in their names; never a hyphen at the
beginning, which would be an option.
"""
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,32}\Z", re.ASCII)


def valid(host: object) -> bool:
    """Whether this is a host name or an address: letters, digits, hyphens and dots, or an IPv6 address
    without brackets.
    """
    if not isinstance(host, str):
        return False
    if ":" not in host:
        return bool(_LABELS.match(host))
    address, percent, scope = host.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return not percent or bool(_SCOPE.match(scope))


def loopback(host: str) -> bool:
    """Whether this is certainly this machine and no other can reach it there.

    A name other than localhost is never: Debian's own name of a machine leads to 127.0.1.1 there, and from
    elsewhere to its card.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    if host.rstrip(".").lower() != "localhost":
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return bool(found) and all(
        ipaddress.ip_address(str(at[0]).partition("%")[0]).is_loopback for *_, at in found
    )


def listener(host: str, port: int, backlog: int = 128) -> socket.socket:
    """A socket that listens for this machine alone where ``host`` is its loopback, else on all its addresses.
    Raises OSError.
    """
    if loopback(host):
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, at = min(rows, key=lambda row: row[0] != socket.AF_INET)
        return socket.create_server((str(at[0]), port), family=family, backlog=backlog)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=backlog)
