"""Files on another node than the one whose ranks load them: which a node lacks, which it can give, and how
the user's own command brings them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence

from ckpt_tools.findings import finding
from ckpt_tools.job import reported, wire
from ckpt_tools.job.fetch import NotBrought, bring
from ckpt_tools.job.reported import Value
from ckpt_tools.layouts import Layouts
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.frozen import field, record, replace
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.planning.planner import Planner
from ckpt_tools.planning.replicas import Groups

NAMED = 4
"""Files on other nodes that a finding names, at most."""


def wanted(planner: Planner, c: Checkpoint, ranks: Sequence[int], *, listed: bool) -> list[int]:
    """Ranks whose files would help the node of ``ranks``: its own that have none, and, where it has
    ``listed`` any checkpoint, those that hold the same.
    """
    own = {r for p in _sound(planner, c) for r in _ranks_of(planner, p)}
    alone = [r for r in ranks if r not in own]
    alike = {a for r in alone for a in _find_alike(planner, r)} if listed else set()
    return sorted({*alone, *alike})


def _ranks_of(planner: Planner, p: Part) -> Sequence[int]:
    """The ranks that load a part: the one in its name, or those at its coordinates."""
    if p.rank is not None or not p.coords:
        return [] if p.rank is None else [p.rank]
    place, topology = set(p.coords), planner.topology
    return [r for r in range(topology.world_size) if place <= topology.coordinates(r).items()]


def _find_alike(planner: Planner, rank: int) -> Sequence[int]:
    """The other ranks that hold the same model state, as far as that is known."""
    c = planner.ranked[0]
    piece = planner.layouts.of(c).piece(c.parts[0].piece)
    group = Groups(planner.topology, planner.selection).of(rank, piece)
    return [r for r in group.ranks if r != rank] if group else []


def _sound(planner: Planner, c: Checkpoint) -> list[Part]:
    """The parts of a checkpoint in which nothing wrong was found here."""
    reports = planner.session.reports if c.parts else {}
    bad = (Verdict.BROKEN, Verdict.UNKNOWN)
    return [p for p in c.parts if p.path not in reports or reports[p.path].verdict not in bad]


def offers(planner: Planner, c: Checkpoint | None, node: int, others: set[int]) -> list[Value]:
    """What this ``node`` has of a checkpoint that the ranks ``others`` could load."""
    rows = []
    for p in c.parts if c else ():
        ranks = list(_ranks_of(planner, p))
        if not others.isdisjoint(ranks) and p.size > 0 and wire.inside(p.path, planner.root):
            row = {"below": wire.name_of(p.path, planner.root), "part": wire.packed(p, planner.root)}
            rows.append({"node": node, **row, "ranks": ranks})
    return rows


def all_offers(values: Sequence[Value]) -> Value:
    """What all nodes have to give. Raises UsageError for one that speaks for another."""
    for i, v in enumerate(values):
        if any(r["node"] != i for r in v["rows"]):
            raise reported.refuse(f"node {i}", "another node has a file")
    return {"rows": [r for v in values for r in v["rows"]]}


def check_offer(row: Value, layouts: Layouts, of: wire.Identity, nodes: int) -> None:
    """Raises UsageError for a part that is none of this checkpoint, or of no node."""
    part, layout = row["part"], layouts.get(of.layout)
    known = (
        layout is not None
        and part["layout"] == of.layout
        and any(p.name == part["piece"] for p in layout.pieces)
    )
    in_place = part["path"].endswith(f"/{row['below']}")
    if row["node"] >= nodes or not row["ranks"] or not known or not in_place:
        raise reported.refuse(f"node {row['node']}", f"{row['below']} is a part of this checkpoint")


def on_other_nodes(offered: Sequence[Value], hosts: Sequence[str]) -> Iterator[Finding]:
    """The first files that other nodes have offered, for the user."""
    for row in offered[:NAMED]:
        text = f"the {row['part']['role']} file of rank {row['ranks'][0]} lies on {hosts[row['node']]}"
        yield finding("on-other-node", f"{text}, where that rank does not run", path=row["part"]["path"])


@record
class Transfer:
    """Brings files of other nodes into the directory ``to``, by a ``command`` for which ``timeout`` is in
    seconds. ``failures`` are findings about those that could not be brought.
    """

    command: Sequence[str]
    to: str
    timeout: float
    failures: list[Finding] = field(default_factory=list)

    def missing(
        self,
        planner: Planner,
        c: Checkpoint,
        offered: Sequence[Value],
        ranks: Collection[int],
        hosts: Sequence[str],
    ) -> list[Part]:
        """Brings what the ``ranks`` load and this node lacks, each part once."""
        have = {_place(p) for p in _sound(planner, c)}
        brought = list[Part]()
        for row in offered:
            p = wire.unpacked(row["part"], planner.root)
            if _place(p) in have or set(ranks).isdisjoint(row["ranks"]):
                continue
            have.add(_place(p))
            host = hosts[row["node"]].partition("#")[0]
            if here := self._bring(p, host, row["below"]):
                brought.append(here)
        return brought

    def _bring(self, part: Part, host: str, below: str) -> Part | None:
        target = os.path.join(self.to, below)
        try:
            st = bring(self.command, host, part, self.to, below, timeout=self.timeout)
        except NotBrought as e:
            text = f"--transfer has not brought {part.path} from {host}: {e}"
            self.failures.append(finding("on-other-node", text, path=target))
            return None
        return part._replace(path=target, size=st.st_size, mtime_ns=st.st_mtime_ns) if st.st_size else None


def _place(p: Part) -> tuple[int | None, tuple[tuple[str, int], ...], str]:
    """What is loaded from a part: of two with the same, one is enough."""
    return p.rank, p.coords, p.role


def only(c: Checkpoint, brought: Sequence[Part], kind: Kind) -> Checkpoint:
    """A checkpoint with those of its parts alone that this start has brought."""
    paths = {p.path for p in brought}
    return replace(c, kind=kind, parts=tuple(p for p in c.parts if p.path in paths))
