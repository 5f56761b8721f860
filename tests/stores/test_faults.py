"""What can go wrong between ckpt and a store is never taken for what is in it: no fault makes a good file
broken, a broken one good, or a checkpoint that is there none at all. Whoever cannot look says so (exit 5).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path
from threading import Thread

import pytest
from stores import asking
from stores.asking import NEWEST, TREE, Said, as_user, ask
from stores.behind_proxy import Behind, user_of
from stores.bucket import Bucket
from stores.faults import (
    Corrupt,
    CorruptElsewhere,
    Cut,
    Hook,
    Short,
    ShortLength,
    StaleList,
    Stall,
    Status,
    denied,
    expired_token,
    too_many,
    unavailable,
)  # fmt: skip
from stores.proxy import Fault, Proxy, Rule
from stores.s3 import s3_of

from ckpt_tools import CannotLook
from ckpt_tools.storage import stalls

LIST, LISTED = r"list-type=2", r"list-type=2|comp=list"
QUESTIONS, WRITERS = ("ls", "verify", "plan", "plan-or-none", "latest"), ("seal", "hook", "watch")
CHOICES = ("plan", "latest", "stage", "plan of the tracker", "structure", "budget")
COMMANDS = asking.READERS | asking.WRITERS
COMMANDS |= {
    "plan-or-none": "plan @ --allow none,missing --json",
    "structure": "plan @ --level structure --json",
    "budget": "plan @ --budget 60 --json",
}
LOCAL = re.compile(r"dmesg|smartctl|\bdisk|mounted|chmod|file system\b|user that runs")
"""What a hint about a store has no word of."""
CHOOSE = ("plan", "plan-or-none", "latest", "hook")


class Asker(Behind):
    """The tree is in the bucket."""

    def ask(self, question: str, *more: str) -> Said:
        said = self.said(" ".join((COMMANDS[question], *more)))
        assert not [hint for hint in said.hints if LOCAL.search(hint)], said.text
        return said


def test_what_nobody_gave_a_hint_for_has_one_about_its_store() -> None:
    """``watch`` of what cannot be listed, ``plan`` of hf:// without such a repository."""
    assert not LOCAL.search(CannotLook("cannot look at s3://bucket/run: it is refused").hint)
    assert LOCAL.search(CannotLook("cannot look at /data/run: it is refused").hint)


asker = user_of("s3", Asker)


FAULTS: dict[str, Fault] = {
    "cut before the answer": Cut(), "cut in the answer": Cut(100), "short": Short(100), "short and said to be so": ShortLength(100),
    "503": unavailable("3600"),  # nobody waits for so long
    "500": Status(500), "429": too_many(), "403 expired": expired_token(), "403 denied": denied(), "401": Status(401), "416": Status(416),
    "404 of a gateway": Status(404, body=b"<html>no such page</html>"), "empty": Status(200),
    "garbage": Status(200, body=b"<html>welcome to the captive portal</html>"),
    "redirect": Status(307, (("Location", "http://127.0.0.1:9/elsewhere"),)), "redirect to nowhere": Status(301),
}  # fmt: skip


EVERYDAY = {"503", "403 denied", "empty"}
LISTS = [
    pytest.param(fault, question, marks=() if of_every_day else pytest.mark.exhaustive)
    for fault, question in product(FAULTS, QUESTIONS)
    for of_every_day in [question == "plan-or-none" or fault in EVERYDAY]
]


@pytest.mark.share(6)
@pytest.mark.parametrize(("fault", "question"), LISTS)
def test_a_list_that_cannot_be_read_is_no_empty_list(asker: Asker, fault: str, question: str) -> None:
    asker.proxy.add(Rule(FAULTS[fault], method="GET", path="" if fault == "garbage" else LIST))
    said = asker.ask(question)
    assert said.code == 5, said.text
    assert "error" in said.json or said.json.get("checkpoint") is None


@pytest.mark.share(6)
@pytest.mark.parametrize("fault", FAULTS)
def test_an_object_that_cannot_be_read_is_unknown(asker: Asker, fault: str) -> None:
    """Neither broken nor good, and all others are judged as ever."""
    asker.proxy.add(Rule(FAULTS[fault], method="GET", path=f"/run/{NEWEST}"))
    said = asker.ask("verify")
    verdicts = said.verdicts
    assert verdicts.pop(NEWEST) == "unknown"
    assert (said.code, set(verdicts.values())) == (5, {"ok"})
    assert said.codes & {"unreadable", "in-use"}


@pytest.mark.share(24)
@pytest.mark.parametrize("asker", ["s3", "gcs", "azurite"], indirect=True)
@pytest.mark.parametrize("where", [LISTED, f"/run/{NEWEST}"], ids=["list", "object"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_older_checkpoint_is_chosen_because_one_cannot_be_read(
    asker: Asker, fault: str, where: str
) -> None:
    everywhere = fault == "garbage" and where == LISTED
    asker.proxy.add(Rule(FAULTS[fault], method="GET", path="" if everywhere else where))
    for question in ("plan", "plan-or-none", "latest"):
        said = asker.ask(question)
        assert (said.code, said.json.get("checkpoint")) == (5, None), said.text


@pytest.mark.parametrize("fault", ["503", "403 denied", "cut before the answer", "empty", "404 of a gateway"])
def test_a_tracker_that_cannot_be_read_is_no_tracker_that_is_not_there(asker: Asker, fault: str) -> None:
    asker.proxy.add(Rule(FAULTS[fault], path="latest_checkpointed_iteration"))
    said = asker.ask("plan", "--order", "tracker")
    assert said.code == 5, said.text


@pytest.mark.share(3)
@pytest.mark.parametrize("fault", ["503", "cut before the answer", "cut in the answer", "short", "429"])
def test_a_fault_that_passes_is_not_seen(asker: Asker, fault: str) -> None:
    asker.proxy.add(Rule(FAULTS[fault], method="GET", times=1))
    asker.proxy.add(Rule(FAULTS[fault], method="GET", path=f"/run/{NEWEST}", times=1))
    said = asker.ask("verify")
    assert (said.code, said.json["verdict"]) == (0, "ok"), said.text


def test_nothing_at_the_address(asker: Asker) -> None:
    with pytest.MonkeyPatch.context() as patch:  # undone before what ``as_user`` has set
        patch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")
        for question in QUESTIONS:
            said = asker.ask(question)
            assert said.code == 5
            assert "nothing answers at the store's address" in said.text


@pytest.mark.share(6)
@pytest.mark.parametrize("question", ["verify", "plan", "latest", *WRITERS])
def test_bytes_that_come_differently_are_no_damage(asker: Asker, question: str) -> None:
    """Torch's archives have a checksum for each record. Whichever read is wrong, once or another way each
    time: nothing is called broken, nothing older chosen, and no seal made of it.
    """
    before, seal = asker.bucket.keys(), f"{NEWEST.partition('/')[0]}/.ckpt-seal.json"
    rows = [Rule(Corrupt(70_000), "GET", f"/run/{NEWEST}", first=n, times=1) for n in (1, 2)]
    for rule in (Rule(CorruptElsewhere(70_000), "GET", f"/run/{NEWEST}"), *rows):
        asker.proxy.clear()
        asker.proxy.add(rule)
        shutil.rmtree("home/watched", ignore_errors=True)  # or what is known is not said again
        said = asker.ask(question)
        differently = said.code == 5 and re.search(
            "differed when they were read|that the store says", said.text
        )
        assert differently or (rule.times and said.code == 0), said.text
        assert "iter_0000020" not in str(said.json.get("checkpoint") if question in CHOOSE else ""), said.text
        assert said.code == 0 or f"run/{seal}" not in asker.bucket.keys()  # noqa: SIM118 - no mapping
        assert set(before) <= set(asker.bucket.keys())
        for key in set(asker.bucket.keys()) - set(before):
            asker.bucket.delete(key)


@pytest.mark.parametrize("asker", ["s3", "gcs", "azurite"], indirect=True)
def test_an_object_that_is_not_what_was_listed_is_in_use(asker: Asker) -> None:
    """Replaced since an old list was made: what that has, has another ETag now (what it does not have nobody can see:
    S3, Google and Azure have had no such list for years); before it is read, and while it is read.
    """
    stale, other = StaleList(), (TREE / NEWEST.replace("30", "20")).read_bytes()
    asker.proxy.add(Rule(stale, method="GET", path=LISTED))
    assert asker.ask("plan").code == 0
    stale.freeze()
    asker.bucket.put(f"run/{NEWEST}", other)
    said = [asker.ask("plan")]
    for after in (0, 40_000):
        asker.proxy.clear()
        asker.bucket.put(f"run/{NEWEST}", (TREE / NEWEST).read_bytes())
        swapped = Hook(lambda: asker.bucket.put(f"run/{NEWEST}", other), after=after)
        asker.proxy.add(Rule(swapped, method="GET", path="mp_rank_01", times=1))
        said.append(asker.ask("plan"))
    assert [(one.code, "in-use" in one.codes) for one in said] == [(5, True)] * 3


@pytest.mark.share(2)
@pytest.mark.parametrize("where", [LIST, f"/run/{NEWEST}"])
def test_a_stall_ends_with_the_budget(asker: Asker, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "GRACE", 1.0)
    stall = Stall()
    asker.proxy.add(Rule(stall, method="GET", path=where))
    try:
        said = asker.ask("plan", "--budget", "2")
        assert stall.reached.is_set()
    finally:
        stall.release.set()
    assert said.code == 5, said.text
    assert said.json.get("checkpoint") is None


def test_what_does_not_come_in_time_is_not_what_broke_off(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library has asked again for minutes by then: four times as long nobody waits."""
    stall = Stall(after=10)
    asker.proxy.add(Rule(stall, "GET", NEWEST))
    monkeypatch.setenv("CKPT_STORE_OPTION", "max_retries=0\ntimeout=200ms")
    said = asker.ask("verify")
    stall.release.set()
    assert said.code == 5 and "did not answer in time" in said.text, said.text
    assert asker.proxy.count("GET", NEWEST) <= 2


def test_a_call_with_a_time_limit_may_be_given_anything() -> None:
    """Such as the keys of a batch that is to be deleted, which have no hash."""
    with stalls.limit_time(60):
        assert stalls.watch_call(len, ["run/1", "run/2"]) == 2


def test_a_signal_ends_a_stall(asker: Asker) -> None:
    """The library's calls look at none, and a script that is told to end has no minutes to do so."""
    stall = Stall()
    rule = asker.proxy.add(Rule(stall, method="GET", path=LIST))

    def interrupt() -> None:
        assert stall.reached.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    sender = Thread(target=interrupt)
    sender.start()
    try:
        said = asker.ask("plan")
    finally:
        sender.join()
        stall.release.set()
    assert (said.code, said.printed) == (130, "")
    assert rule.matched == 1  # else it has waited until the library asked again


def test_a_portal_in_the_middle_of_a_list_is_no_end_of_it(
    gcs: Bucket, proxy_of: Callable[[Bucket], Proxy], tmp_path: Path
) -> None:
    for number in range(1000):
        gcs.put(f"run/a/{number:04}", b"")
    gcs.upload(TREE, "run")
    proxy = proxy_of(gcs)
    with as_user(tmp_path, gcs.through(proxy.endpoint)):
        assert ask("plan", f"{gcs.url}/run", "--json").json["resume_step"] == 30
        proxy.add(Rule(FAULTS["garbage"], method="GET", first=2))
        said = ask("plan", f"{gcs.url}/run", "--allow=none", "--json")
        assert (said.code, "checkpoint" in said.json) == (5, False), said.text


@pytest.mark.parametrize("first", [1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(2, 8))])
def test_a_portal_makes_no_file_of_a_directory(
    proxy: Proxy, through: Bucket, tmp_path: Path, first: int
) -> None:
    """It has a page for each name, so ``diff`` would compare a file with a directory, which is wrong usage."""
    through.upload(TREE / "iter_0000030", "run/iter_0000030")
    with as_user(tmp_path, through):
        dated = (("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),)
        proxy.add(Rule(Status(200, dated, FAULTS["garbage"].body), first=first))  # type: ignore[attr-defined]
        said = ask("diff", str(TREE / "iter_0000030"), f"{through.url}/run/iter_0000030")
    assert said.code == 5, said.text


@pytest.mark.parametrize("asker", ["gcs"], indirect=True)
def test_a_store_that_did_not_answer_is_not_asked_for_something_else(asker: Asker) -> None:
    """Whether there is a run at all, for example: that would take as long again, without a time limit."""
    asker.proxy.add(Rule(unavailable("0"), path=LIST))
    said = asker.ask("plan-or-none")
    assert (said.code, asker.proxy.count("HEAD")) == (5, 0), said.text


# ---- something between the store and here, such as a cache, has an object wrong and gives it wrongly each time, while
# the checksum that the store keeps says that the object is good: nothing older is chosen for that, nothing is sealed,
# staged or deleted, and no verdict is given

SIZE = (TREE / NEWEST).stat().st_size
PLACES = {
    "begin": (NEWEST, 0),
    "content": (NEWEST, SIZE // 2),
    "end": (NEWEST, SIZE - 10),
    "tracker": ("latest_checkpointed_iteration.txt", 0),
}
"""Which byte of which object comes otherwise."""
KEEPS = {"crc": {}, "etag": {"ServerSideEncryption": "AES256"}}
"""What the store keeps: a CRC-32 of each object, or an ETag alone, and that it is an MD5."""


@pytest.mark.share(32)
@pytest.mark.parametrize(
    ("keeps", "place", "command"), list(product(KEEPS, PLACES, (*CHOICES, "verify", *asking.WRITERS)))
)
def test_what_comes_is_not_what_the_store_holds(
    asker: Asker, keeps: str, place: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_of(asker.bucket).upload(TREE, "run", **KEEPS[keeps])
    name, at = PLACES[place]
    asker.proxy.add(Rule(Corrupt(at), "GET", f"/run/{name}"))
    if command == "prune":
        monkeypatch.setenv("CKPT_ORDER", "step")
    before = asker.bucket.keys()
    said = asker.said(COMMANDS[command])
    as_usual = said.code == 0 and (command not in CHOICES or said.json["resume_step"] == 30)
    assert said.code == 5 or as_usual, said.text
    assert "broken" not in (f["verdict"] for f in said.json.get("files", ()) if "verdict" in f), said.text
    assert set(before) <= set(asker.bucket.keys())
    sealed = [key for key in asker.bucket.keys() if key.startswith("run/iter_0000030/.ckpt-seal")]  # noqa: SIM118
    assert not sealed or place == "tracker"
