"""Checksums of other kinds over the same bytes, worked out as these are read: a seal's chunks and the records
of an archive, which begin and end elsewhere.

The digest of a chunk is fed from its first byte to its last. The CRCs of what lies in it ride along: they are
cut where chunks begin, and joined again afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.checksum.sums import Extent, Riders, Sum, Unit


class Shared(NamedTuple):
    """All units, and which of them ride on which."""

    units: list[Unit]
    riders: Riders


def shared(sums: Sequence[Sum], units: Sequence[Unit]) -> Shared:
    """The units, in file order, with those that may ride cut at the borders of what they ride on."""
    hosts = _hosts(sums, units)
    if not hosts:
        return Shared(list(units), {})
    riders: dict[Unit, list[Unit]] = {host: [] for host in hosts}
    out, i = list[Unit](), 0
    for u in units:
        if u in riders or not _may_ride(sums, u):
            out.append(u)
        else:
            while i + 1 < len(hosts) and hosts[i].offset + hosts[i].length <= u.offset:
                i += 1
            out += _cut(u, hosts, i, riders)
    return Shared(sorted(out), {host: sorted(rows) for host, rows in riders.items() if rows})


def seated(riders: Riders) -> frozenset[Unit]:
    """The units that nobody reads by themselves."""
    return frozenset(u for rows in riders.values() for u in rows)


def _hosts(sums: Sequence[Sum], units: Sequence[Unit]) -> list[Unit]:
    """Units of one range each that no CRC splits, none of which overlaps another."""
    out = list[Unit]()
    for u in units:
        if u.sum < 0 or u.piece >= 0 or not u.length or len(sums[u.sum].pieces) != 1:
            continue
        if not out or out[-1].offset + out[-1].length <= u.offset:
            out.append(u)
    return out


def _may_ride(sums: Sequence[Sum], u: Unit) -> bool:
    """Whether a unit is a range of bytes of a CRC, or of no sum."""
    return u.length > 0 and (u.sum < 0 or (u.piece >= 0 and isinstance(sums[u.sum].pieces[u.piece], Extent)))


def _cut(u: Unit, hosts: Sequence[Unit], first: int, riders: dict[Unit, list[Unit]]) -> Iterator[Unit]:
    """A unit in pieces, each inside a host, to which it is added, or outside all of them."""
    at, end = u.offset, u.offset + u.length
    for k in range(first, len(hosts)):
        host = hosts[k]
        if host.offset >= end or at >= end:
            break
        if at < host.offset:
            yield u._replace(offset=at, length=host.offset - at)
            at = host.offset
        stop = min(end, host.offset + host.length)
        if at < stop:
            piece = u._replace(offset=at, length=stop - at)
            riders[host].append(piece)
            yield piece
            at = stop
    if at < end:
        yield u._replace(offset=at, length=end - at)
