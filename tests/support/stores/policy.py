"""The rights of a user, as AWS evaluates a policy: a proxy's rule that lets through what is granted. Whoever may
list only below a prefix is told 403 also where there is no such object (API reference, GetObject, "Permissions").
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import parse_qs

from stores.exchange import Exchange, Seen
from stores.faults import denied

READ = frozenset({"s3:ListBucket", "s3:GetObject"})
"""What every command needs that only reads."""


def right_of(seen: Seen) -> str:
    """The action that a request is."""
    query = parse_qs(seen.query, keep_blank_values=True)
    if seen.method == "GET" and "list-type" in query:
        return "s3:ListBucket"
    if seen.method in ("GET", "HEAD"):
        of_parts = "s3:GetObjectAttributes" if "attributes" in query else "s3:GetObject"
        return "s3:GetObjectVersion" if "versionId" in query else of_parts
    return "s3:PutObject" if seen.method == "PUT" else "s3:DeleteObject"


@dataclass(frozen=True)
class Policy:
    """``rights`` on what lies below ``prefix``; all of the bucket where that is empty."""

    rights: Collection[str]
    prefix: str = "run/"

    def meet(self, exchange: Exchange) -> None:
        right = right_of(exchange.seen)
        listed = parse_qs(exchange.seen.query).get("prefix", [""])[0]
        below = listed if right == "s3:ListBucket" else exchange.seen.path.lstrip("/").partition("/")[2]
        # a batch of deletions names its keys in the body
        mine = below.startswith(self.prefix) or (right == "s3:DeleteObject" and not below)
        answer = exchange.ask() if right in self.rights and mine else None
        if answer is None or (answer.status == 404 and self.prefix):
            if answer is not None:
                answer.whole()
            denied().meet(exchange)
        else:
            exchange.send(answer)
