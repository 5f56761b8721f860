"""Several things go wrong at once, or one begins in the middle of a question: the answer is the right one, or
that nobody could look. It is never an older checkpoint in silence, and never a first launch.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from helpers import flipped
from stores.asking import TREE, Said
from stores.behind_proxy import Behind, user_of
from stores.bucket import Bucket
from stores.faults import Corrupt, Cut, Hook, Short, Status, denied, expired_token, too_many, unavailable
from stores.proxy import Exchange, Fault, Rule

from ckpt_tools.storage.stores import mounts

NEWEST = "iter_0000030"
FILES = [f"{NEWEST}/mp_rank_{rank:02}/model_optim_rng.pt" for rank in (0, 1)]
LIST = "list-type=2"
HOUR_AGO = time.time() - 3600


@dataclass(frozen=True)
class Without:
    """A list that lacks the keys in which ``what`` is found."""

    what: str

    def meet(self, exchange: Exchange) -> None:
        answer, data = exchange.ask().whole()
        row = rb"<Contents>(?:(?!</Contents>).)*%b(?:(?!</Contents>).)*</Contents>" % self.what.encode()
        text = re.sub(row, b"", data, flags=re.DOTALL)
        exchange.send(replace(answer, length=len(text), body=iter([text])))


@dataclass(frozen=True)
class Asker(Behind):
    """Whose copies are below ``ssd``."""

    def __post_init__(self) -> None:
        age(self.bucket)

    @property
    def ssd(self) -> Path:
        return self.home / "ssd"

    def plan(self, *rules: Rule) -> Said:
        return self.ask("plan @ --allow none,missing --json", rules)

    def stage(self, *rules: Rule) -> Said:
        return self.ask("stage @ ssd --json", rules)

    def ask(self, line: str, rules: tuple[Rule, ...]) -> Said:
        mounts._trees.clear()
        self.proxy.clear()
        for rule in rules:
            self.proxy.add(rule)
        return self.said(line)

    def staged(self) -> dict[str, bytes]:
        """What lies in whole copies."""
        whole = [p for p in self.ssd.glob("iter_*") if not p.name.endswith(".part")]
        return {str(f.relative_to(p)): f.read_bytes() for p in whole for f in p.rglob("*.pt")}


def age(bucket: Bucket) -> None:
    """All was uploaded long before anybody asked."""
    shelf = bucket.contents
    shelf.objects = {k: replace(v, saved=HOUR_AGO) for k, v in shelf.objects.items()}  # type: ignore[attr-defined]


asker = user_of("gcs", Asker)


def right_or_unseen(said: Said) -> bool:
    return said.code == 5 or (said.code == 0 and said.json["resume_step"] == 30)


# ---- lists


@pytest.mark.share(2)
@pytest.mark.parametrize("lists", [1, 2, 3])
@pytest.mark.parametrize("what", [NEWEST, FILES[1], "iter_", "run/"])
def test_a_list_that_lacks_something_is_noticed_by_the_next(asker: Asker, what: str, lists: int) -> None:
    said = asker.plan(Rule(Without(what), path=LIST, times=lists))
    assert right_or_unseen(said), said.text
    if lists == 1:
        assert said.code == 5, said.text


def test_a_save_that_is_uploaded_meanwhile_is_no_list_that_lacked_it(asker: Asker) -> None:
    """Its time tells: the answer is as before, with the warning that somebody writes."""
    new = [(f"run/{f.replace('30', '40')}", (TREE / f).read_bytes()) for f in FILES]
    upload = Hook(lambda: [asker.bucket.put(key, data) for key, data in new])
    said = asker.plan(Rule(upload, method="GET", path=FILES[0], times=1))
    assert (said.code, said.json["resume_step"]) == (0, 30), said.text


# ---- one fault that begins in the middle, and two at once

FAULTS: dict[str, Fault] = {
    "cut": Cut(), "short": Short(100), "503": unavailable("0"), "expired": expired_token(), "429": too_many(), "empty": Status(200),
    "other": Status(412), "no such key": Status(404, body=b"<Error><Code>NoSuchKey</Code></Error>"),
    "portal": Status(200, body=b"<html>welcome</html>"),
    "empty list": Status(200, body=b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"),
}  # fmt: skip


def begin_somewhere(
    asker: Asker, question: Callable[..., Said], fault: str, each: int, times: int | None
) -> None:
    """What was brought so far is no checkpoint, and the next start brings the rest. ``each``: at one of so many."""
    assert question().code == 0
    whole, last = asker.staged(), len(asker.proxy.seen)
    for first in range(1 + list(FAULTS).index(fault) % each, last + 1, each):
        shutil.rmtree(asker.ssd, ignore_errors=True)
        said = question(Rule(FAULTS[fault], first=first, times=times))
        assert right_or_unseen(said) and asker.staged() in ({}, whole), (first, said.text)
        assert (question().code, asker.staged()) == (0, whole), first


@pytest.mark.share(6)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_begins_in_the_middle(asker: Asker, fault: str) -> None:
    """Of a plan, or while files are brought, one fault after the other."""
    brings = fault in ("cut", "expired", "empty", "other")
    begin_somewhere(asker, asker.stage if brings else asker.plan, fault, 5, None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("times", [1, None])
def test_a_fault_anywhere(asker: Asker, fault: str, times: int | None) -> None:
    for question in (asker.plan, asker.stage):
        begin_somewhere(asker, question, fault, 1, times)


ONE, OTHER = FILES
TWO = {
    "503, then a cut": (Rule(unavailable("0"), path=LIST, times=1), Rule(Cut(100), path=ONE, times=1)),
    "cut, and another is denied": (Rule(Cut(100), path=ONE, times=1), Rule(denied(), path=OTHER)),
    "a list that lacks a rank, and 503": (Rule(Without(OTHER), path=LIST, times=1), Rule(unavailable("0"), path=LIST, first=2)),
    "429, and a token that expires": (Rule(too_many(), times=1), Rule(expired_token(), path=OTHER)),
    "a bit, and another file is denied": (Rule(Corrupt(70_000), path=ONE, times=1), Rule(denied(), path=OTHER)),
}  # fmt: skip


@pytest.mark.parametrize("name", TWO)
def test_two_faults_at_once(asker: Asker, name: str) -> None:
    for question in (asker.plan, asker.stage):
        said = question(*(replace(rule) for rule in TWO[name]))
        assert right_or_unseen(said), said.text
        assert set(asker.staged()) in (set(), set(FILES))


def test_an_object_replaced_while_another_is_tried_again(asker: Asker) -> None:
    """The pause after a refusal is long enough for that."""
    other = (TREE / FILES[0].replace("30", "20")).read_bytes()
    swapped = Hook(lambda: asker.bucket.put(f"run/{FILES[1]}", other))
    said = asker.plan(Rule(unavailable("0"), path=FILES[0], times=1), Rule(swapped, path=FILES[0], times=1))
    assert said.code == 5, said.text


def test_an_object_of_the_same_size_and_second_between_plan_and_copy(asker: Asker) -> None:
    """Its ETag tells."""
    data = flipped((TREE / FILES[1]).read_bytes(), 8 * 70_000)

    def swap() -> None:
        asker.bucket.put(f"run/{FILES[1]}", data)
        age(asker.bucket)

    assert asker.stage().code == 0
    reads = [s for s in asker.proxy.seen if s.method == "GET" and FILES[1] in s.path]
    shutil.rmtree(asker.ssd)
    said = asker.stage(Rule(Hook(swap), method="GET", path=FILES[1], first=len(reads) - 1, times=1))
    assert said.code == 5, said.text
    assert asker.staged() == {}
