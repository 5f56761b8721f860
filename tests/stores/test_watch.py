"""``ckpt watch`` of a run in a store: one listing for a look at which nothing has changed, and each checkpoint
verified when it is finished.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from helpers import flipped
from msgspec.structs import replace
from run_helpers import megatron
from stores.asking import as_user
from stores.bucket import Bucket
from stores.calls import URL, Call, Calls, Fault
from stores.faults import Status, unavailable
from stores.proxy import Proxy, Rule
from stores.s3 import reached

from ckpt_tools.guard.watch import WatchOptions
from ckpt_tools.guard.watch.loop import Watcher
from ckpt_tools.guard.watch.root import WatchedRoot
from ckpt_tools.model.answers import Event
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.storage.stores import mounts

PORTAL = Status(200, (("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),), b"<html>welcome</html>")
OPTIONS = WatchOptions(read=ReadOptions(jobs=1, settle=0, cache=True), once=True)


class Watched:
    """One root, looked at as often as a test says; ``events`` are those since it was asked for them last."""

    def __init__(self, bucket: Bucket, options: WatchOptions = OPTIONS) -> None:
        self._said = list[Event]()
        self.root = WatchedRoot(f"{bucket.url}/run", options, self._said.append)

    def look(self) -> list[Event]:
        while self.root.look() <= 0:
            pass
        said, self._said[:] = list(self._said), []
        return said


def checkpoints(events: list[Event]) -> list[tuple[object, ...]]:
    told = (e.fields for e in events if e.type == "checkpoint")
    return [(fields["step"], fields["state"], fields["reason"]) for fields in told]


def ran(bucket: Bucket, said: list[Event]) -> int:
    """The exit code of a watcher that looks once."""
    said.clear()
    try:
        return Watcher([f"{bucket.url}/run"], OPTIONS, said.append).run()
    except Exception as e:
        return getattr(e, "exit_code", 70)


def test_each_checkpoint_is_verified_as_it_is_saved(s3: Bucket, tmp_path: Path) -> None:
    root = megatron(tmp_path / "run", steps=(10,))
    s3.upload(root, "run")
    with reached(s3, tmp_path):
        watched = Watched(s3)
        assert checkpoints(watched.look()) == [(10, "good", "new")]
        megatron(root, steps=(20,))
        bad = "run/iter_0000020/mp_rank_01/model_optim_rng.pt"
        s3.upload(root / "iter_0000020", "run/iter_0000020")
        s3.put(bad, b"PK\3\4 no more")
        assert checkpoints(watched.look()) == [(20, "bad", "new")]
        s3.put(bad, (tmp_path / bad).read_bytes())
        assert checkpoints(watched.look()) == [(20, "good", "changed")]
        for rank in range(2):
            s3.delete(f"run/iter_0000010/mp_rank_0{rank}/model_optim_rng.pt")
        assert [e.fields["step"] for e in watched.look() if e.type == "gone"] == [10]
        assert checkpoints(watched.look()) == []


def test_of_what_is_known_nothing_is_read_again(tmp_path: Path, proxy: Proxy, through: Bucket) -> None:
    """And a look at which a checkpoint is new reads that one, and of those beside it nothing."""
    root = megatron(tmp_path / "run")
    through.upload(root, "run")
    with reached(through, tmp_path):
        watched = Watched(through)
        assert len(checkpoints(watched.look())) == 2
        for _ in range(3):
            proxy.clear()
            assert watched.look() == []
            assert not [seen.path for seen in proxy.seen if "model_optim_rng" in seen.path]
        megatron(root, steps=(30,))
        through.upload(root / "iter_0000030", "run/iter_0000030")
        proxy.clear()
        assert checkpoints(watched.look()) == [(30, "good", "new")]
        read = {seen.path for seen in proxy.seen if "model_optim_rng" in seen.path}
        assert read and all("iter_0000030" in path for path in read), read


def test_an_object_replaced_by_one_of_the_same_size_is_looked_at(s3: Bucket, tmp_path: Path) -> None:
    """Also within the second that its time tells."""
    s3.upload(megatron(tmp_path / "run"), "run")
    key = "run/iter_0000010/mp_rank_01/model_optim_rng.pt"
    data = (tmp_path / key).read_bytes()
    with reached(s3, tmp_path):
        watched = Watched(s3)
        watched.look()
        s3.put(key, flipped(data, 4 * len(data)))
        assert [row[::2] for row in checkpoints(watched.look())] == [(10, "changed")]


def test_what_is_known_is_scrubbed_in_time(s3: Bucket, tmp_path: Path, proxy: Proxy, through: Bucket) -> None:
    """Its bytes are read anew then, although its ETags are known."""
    s3.upload(megatron(tmp_path / "run"), "run")
    with reached(through, tmp_path):
        watched = Watched(s3, replace(OPTIONS, every=0.0))
        watched.look()
        proxy.clear()
        assert {row[2] for row in checkpoints(watched.look())} == {"scrub"}
        assert proxy.count("GET", "model_optim_rng") >= 4


def test_a_store_that_does_not_answer_is_no_news(tmp_path: Path, proxy: Proxy, through: Bucket) -> None:
    through.upload(megatron(tmp_path / "run"), "run")
    said = list[Event]()
    with reached(through, tmp_path):
        assert ran(through, said) == 0
        rule = proxy.add(Rule(unavailable("0")))
        assert (
            ran(through, said) == 5 and rule.matched and not {e.type for e in said} & {"gone", "checkpoint"}
        )
        proxy.clear()
        assert ran(through, said) == 0


def test_a_prefix_without_objects_is_still_to_come(s3: Bucket, tmp_path: Path) -> None:
    said = list[Event]()
    with reached(s3, tmp_path):
        assert ran(s3, said) == 5
    assert [e.fields["code"] for e in said if e.type == "problem"] == ["cannot-look"]
    assert not (Path.cwd() / "s3:").exists()


def test_a_seal_that_was_refused_is_put_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while; by the next process at once."""
    megatron(tmp_path / "top/run", steps=(10,), world=1)
    fault = Fault("refused", Call("put", "run/iter_0000010/.ckpt-seal.json", 1), stays=True)
    store, ahead, clock = Calls(tmp_path / "top", fault), [0.0], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + ahead[0])
    monkeypatch.setattr(mounts, "open_store", lambda *_: store)
    bucket = Bucket(URL, "", {}, None)  # type: ignore[arg-type]
    options = replace(OPTIONS, seal=True, rescan=10_000.0)  # nothing else takes so long

    def looks(watched: Watched, times: int) -> list[int]:
        """The passes that put a seal; ``said`` are the events of the last one."""
        tried = []
        for number in range(times):
            before = len([c for c in store.calls if c.kind == "put"])
            said[:] = watched.look()
            tried += [number] * (len([c for c in store.calls if c.kind == "put"]) - before)
            ahead[0] += 5_001.0
        return tried

    said = list[Event]()
    with as_user(tmp_path, bucket):
        watched = Watched(bucket, options)
        with watched.root.records.hold():
            assert looks(watched, 5) == [0, 2, 4]
            watched.root.records.save()
        watched = Watched(bucket, options)
        watched.root.load()
        assert looks(watched, 2) == [0]
        store.fault = None
        assert looks(watched, 1) == [0]
        assert [e.fields["seal"] for e in said if e.type == "checkpoint"] == ["sealed"]
        assert looks(watched, 3) == []


@pytest.mark.parametrize(
    "rule",
    [
        Rule(PORTAL, path=r"/run$"),  # HEAD of the root: it is no file for that
        Rule(PORTAL, path="latest_checkpointed_iteration"),
    ],
    ids=["root", "tracker"],
)
def test_what_could_not_be_looked_at_is_no_success(
    tmp_path: Path, proxy: Proxy, through: Bucket, rule: Rule
) -> None:
    """Also where no checkpoint is known to be anything, because all of them seem to be written."""
    through.upload(megatron(tmp_path / "run"), "run")
    with reached(through, tmp_path):
        proxy.add(rule)
        assert ran(through, []) == 5 and rule.matched
