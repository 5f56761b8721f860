"""A server, a gateway or a cache that answers otherwise than it was asked: with the whole object or another range,
under another ETag, packed, or with a list in another order. Every command gives its usual answer or exit 5; none
chooses something older, calls a good file broken, deletes what would stay, or waits.
"""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Callable
from functools import partial

import pytest
from stores.asking import NEWEST, PLANS, READERS, TREE, WRITERS, Said
from stores.behind_proxy import Behind, user_of
from stores.faults import Cut, Otherwise, Short, ShortLength, Status, expired_token, unavailable
from stores.proxy import Fault, Rule

from ckpt_tools.storage import stalls

COMMANDS = READERS | WRITERS
WHOLE = (TREE / NEWEST).read_bytes()


def rows(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    """The same list with other rows."""

    def changed(body: bytes) -> bytes:
        found = re.findall(rb"<Contents>.*?</Contents>", body, re.DOTALL)
        at = body.find(b"<Contents>")
        rest = re.sub(rb"<Contents>.*?</Contents>", b"", body, flags=re.DOTALL)
        return rest[:at] + b"".join(change(found)) + rest[at:] if found else body

    return changed


def error(status: int, code: str, to: str = "") -> Status:
    """What a store answers that refuses, or sends elsewhere."""
    headers = (("Location", to),) if to else ()
    return Status(status, headers, f"<Error><Code>{code}</Code></Error>".encode())


ELSEWHERE: dict[str, Fault] = {
    "not paid for": error(403, "AccessDenied"),
    "of another time": error(403, "RequestTimeTooSkewed"),
    "in another region": error(301, "PermanentRedirect"),
    "in another region for now": error(307, "TemporaryRedirect", "http://127.0.0.1:9/elsewhere"),
}
"""What is refused is refused each time."""
PACKED = (("Content-Encoding", "gzip"),)
END = rb"<IsTruncated>false</IsTruncated>"
ON = b"<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
LATE: dict[str, Fault] = {"busy": unavailable("3600"), "expired": expired_token()}
CUTS: dict[str, Fault] = {"cut": Cut(100), "short": Short(100), "short and said to be so": ShortLength(100)}
OBJECTS: dict[str, Fault] = {
    "range ignored": Status(200, (("ETag", '"x"'), ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")), WHOLE),
    "another range": Otherwise(headers=(("Content-Range", f"bytes 7-{len(WHOLE) + 6}/{len(WHOLE) + 7}"),)),
    "no range": Otherwise(headers=(("Content-Range", None),)),
    "another ETag": Otherwise(headers=(("ETag", '"0123456789abcdef0123456789abcdef"'),)),
    "no ETag": Otherwise(headers=(("ETag", None),)),
    "packed": Otherwise(headers=PACKED, body=gzip.compress),
    "said to be packed": Otherwise(headers=PACKED),
    "packed in secret": Otherwise(body=gzip.compress),
    "more than was asked for": Otherwise(body=lambda data: data + b"x"),
    "moved": Status(302, (("Location", "http://127.0.0.1:9/elsewhere"),)),
    **CUTS,
    **LATE,
}  # fmt: skip
LISTS: dict[str, Fault] = {
    "every row twice": Otherwise(body=rows(lambda found: [row for row in found for _ in "12"])),
    "backwards": Otherwise(body=rows(lambda found: found[::-1])),
    "cut": Cut(300),
    "no end": Otherwise(body=lambda data: data.replace(b"<IsTruncated>false", b"<IsTruncated>true")),
    "packed": Otherwise(headers=PACKED, body=gzip.compress),
    **LATE,
}
REFUSED: dict[str, Fault] = {
    "archived": error(403, "InvalidObjectState"),
    "in the archive tier": error(409, "BlobArchived"),
    "of another key": error(400, "InvalidRequest"),
    **ELSEWHERE,
}
OTHER_LISTS: dict[str, Fault] = {
    "without ETags": Otherwise(body=partial(re.sub, rb"<ETag>[^<]*</ETag>", b"")),
    "of one time": Otherwise(body=partial(re.sub, rb"(?<=<LastModified>)[^<]*", b"2026-01-01T00:00:00.000Z")),
    **ELSEWHERE,
}
OBJECT, LIST = f"/run/{NEWEST}", "list-type=2"
FAULTS = {
    **{name: Rule(fault, "GET", OBJECT) for name, fault in OBJECTS.items()},
    **{f"{name}, once": Rule(fault, "GET", OBJECT, times=1) for name, fault in OBJECTS.items()},
    **{name: Rule(fault, "GET", OBJECT) for name, fault in REFUSED.items()},
    **{f"list: {name}": Rule(fault, "GET", LIST) for name, fault in OTHER_LISTS.items()},
    "of zeros, once": Rule(Otherwise(body=lambda data: bytes(len(data))), "GET", OBJECT, times=1),
    **{f"list: {name}": Rule(fault, "GET", LIST) for name, fault in LISTS.items()},
    **{f"list: {name}, later": Rule(fault, "GET", LIST, first=2) for name, fault in LISTS.items()},
}


class Desk(Behind):
    """The bucket is filled anew for each command."""

    def ask(self, command: str, rule: Rule | None) -> Said:
        for key in sorted(self.bucket.contents.keys()):
            self.bucket.delete(key)
        self.bucket.upload(TREE, "run")
        for directory in self.home.iterdir():
            shutil.rmtree(directory)
        self.proxy.clear()
        if rule is not None:
            rule.matched = 0
            self.proxy.add(rule)
        return self.said(COMMANDS[command])


desk = user_of("gcs", Desk)


ROWS = [
    pytest.param("plan", 4, id="plan-some"),
    *(pytest.param(command, 1, id=command, marks=pytest.mark.exhaustive) for command in COMMANDS),
]


@pytest.mark.parametrize(("command", "each"), ROWS)
def test_the_usual_answer_or_none(desk: Desk, command: str, each: int) -> None:
    """``each``: by day one of as many faults."""
    usual = desk.ask(command, None)
    assert usual.code == 0
    left = {key for key in sorted(desk.bucket.contents.keys()) if ".ckpt-seal" not in key}
    for name, rule in list(FAULTS.items())[::each]:
        said = desk.ask(command, rule)
        assert said.code in (0, 5), (name, said.text)
        if said.code == 0 and command in PLANS:
            assert said.step == usual.step, (name, said.text)
        if said.code == 0 and command.startswith("verify"):
            assert said.json["verdict"] == usual.json["verdict"], (name, said.text)
        # all is old then, so that the older saves may go
        stay = {key for key in left if "iter_0000030" in key} if name == "list: of one time" else left
        assert set(desk.bucket.keys()) >= stay, name


@pytest.mark.share(2)
@pytest.mark.parametrize("more", [(), ("--budget", "2")], ids=["", "budget"])
def test_a_list_of_one_page_for_ever(
    desk: Desk, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty pages that never end the library takes for a long list: the budget ends it."""
    monkeypatch.setattr(stalls, "GRACE", 1.0)
    assert desk.ask("plan", None).code == 0
    desk.proxy.add(Rule(Otherwise(body=partial(re.sub, END, ON)), "GET", LIST))
    where = f"{desk.bucket.url}/none" if more else "@"
    said = desk.said(" ".join((f"plan {where} --allow none,missing --json", *more)))
    assert said.code == 5, said.text
