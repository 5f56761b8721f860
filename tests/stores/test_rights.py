"""Which rights each command needs, as docs/stores.md says, of a user who may list and read below one prefix alone; a
right that is missing is named, and never good news.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import parse_qs

import pytest
from stores import asking
from stores.asking import Said
from stores.behind_proxy import Behind, user_of
from stores.faults import denied
from stores.proxy import Exchange, Rule, Seen

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
    """A proxy's rule, as AWS evaluates a policy: ``rights`` on what lies below ``prefix``; all of the bucket where that is
    empty. Whoever may list only below a prefix is told 403 also where there is no such object (API reference, GetObject).
    """

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


READERS = {
    **asking.READERS,
    "verify --by-store": "verify @ --by-store --json",
    "prune": "prune @ --keep-last 1 --settle 0s --json",
    "seal --seal-dir": "seal @ --seal-dir home/seals --json",
    "report": "report @ -o page.html",
}
WRITERS = {
    "seal": asking.WRITERS["seal"],
    "watch --seal": "watch @ --once --seal --settle 0s --state-dir home/watched",
    "prune --apply": asking.WRITERS["prune"],
}
OWN = {"seal": "s3:PutObject", "watch --seal": "s3:PutObject", "prune --apply": "s3:DeleteObject"}
"""The right that a writer needs beside those of a reader."""


class User(Behind):
    """Whose rights end at the proxy."""

    def ask(self, line: str, rights: frozenset[str], prefix: str = "run/") -> Said:
        self.proxy.clear()
        self.proxy.add(Rule(Policy(rights, prefix)))
        with pytest.MonkeyPatch.context() as patch:
            if "tracker" not in line:  # all objects are uploaded in one second, or in two
                patch.setenv("CKPT_ORDER", "step")
            return self.said(line)

    @property
    def used(self) -> set[str]:
        return {right_of(seen) for seen in self.proxy.seen}

    def written(self) -> list[str]:
        return [seen.path for seen in self.proxy.seen if seen.method == "PUT"]


user = user_of("s3", User)


@pytest.mark.share(8)
@pytest.mark.parametrize("command", READERS)
def test_who_only_reads_needs_to_list_and_to_read(user: User, command: str) -> None:
    said = user.ask(READERS[command], READ)
    assert said.code == 0, said.text
    assert user.used <= READ


@pytest.mark.share(6)
@pytest.mark.parametrize("user", ["versioned_s3"], indirect=True)
@pytest.mark.parametrize("command", READERS)
def test_where_the_bucket_keeps_versions_these_too(user: User, command: str) -> None:
    """Without the right nobody takes another checkpoint than the one that could not be read."""
    assert user.ask(READERS[command], READ | {"s3:GetObjectVersion"}).code == 0
    said = user.ask(READERS[command], READ)
    assert said.code == 0 or (said.code == 5 and "s3:GetObjectVersion" in said.text), said.text
    assert "iter_0000020" not in said.text or "iter_0000030" in said.text


@pytest.mark.share(3)
@pytest.mark.parametrize("command", WRITERS)
def test_who_writes_needs_one_more(user: User, command: str) -> None:
    own = OWN[command]
    before = user.bucket.keys()
    said = user.ask(WRITERS[command], READ)
    assert said.code == (0 if command.startswith("watch") else 5) and own in said.text, said.text
    assert command != "seal" or "CKPT_SEAL_DIR" in said.text, said.text
    assert user.bucket.keys() == before
    said = user.ask(WRITERS[command], READ | {own})
    assert said.code == 0, said.text
    assert user.used <= READ | {own} and own in user.used
    assert all(re.fullmatch(r"/[^/]+/run/(.*/)?\.ckpt-seal\.json", path) for path in user.written())
    assert user.bucket.keys() != before


@pytest.mark.share(6)
@pytest.mark.parametrize("right", sorted(READ))
@pytest.mark.parametrize("command", [*READERS, *WRITERS])
def test_a_right_that_is_missing_is_no_answer(user: User, command: str, right: str) -> None:
    said = user.ask((READERS | WRITERS)[command], (READ | set(OWN.values())) - {right})
    if command == "ls" and right == "s3:GetObject":  # it reads nothing
        assert said.code == 0
        return
    assert said.code == 5, said.text
    assert right in said.text


def test_nothing_is_no_first_launch_unless_it_may_be_told(user: User) -> None:
    """S3 refuses what is not there as it refuses what must not be read."""
    line = f"plan {user.bucket.url}/other --allow none,missing --json"
    assert user.ask(line, READ, "other/").code == 5
    assert user.ask(line, READ, "").code == 0
    assert user.ask("plan @/none --allow none,missing --json", READ).code == 0  # beside what is listed


def test_a_list_of_a_full_page_ends_also_where_nothing_may_be_read(user: User) -> None:
    """A list of 100 keys may have lost the rest: whoever may list only a part is refused what is not there."""
    for number in range(100 - len(user.bucket.keys())):
        user.bucket.put(f"run/notes/{number:03}.md", b"-")
    said = user.ask(READERS["ls"], READ)
    assert said.code == 0, said.text
