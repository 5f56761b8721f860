"""The tree of a store's keys: what is listed anew replaces what was known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from threading import Event, Thread

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.storage.stores import mounts
from ckpt_tools.storage.stores.store import Object
from ckpt_tools.storage.stores.tree import Tree


class Keys:
    """A store that is a list of keys."""

    url = "s3://bucket"

    def __init__(self, *keys: str) -> None:
        self.keys, self.requests, self.etags = list(keys), Counter[str](), dict[str, str]()

    def objects(self, prefix: str) -> Iterator[Object]:
        """In the order of keys, as the stores of clouds list them."""
        self.requests["list"] += 1
        top = f"{prefix}/" if prefix else ""
        yield from (self.object(k) for k in self.keys if k.startswith(top))

    def directory(self, prefix: str) -> tuple[list[Object], list[str]]:
        self.requests["list"] += 1
        top = f"{prefix}/" if prefix else ""
        below = [k[len(top) :] for k in self.keys if k.startswith(top)]
        found = [self.object(top + name) for name in below if "/" not in name]
        return found, sorted({name.partition("/")[0] for name in below if "/" in name})

    def object(self, key: str) -> Object:
        return Object(key, 1, 0, self.etags.get(key, key))

    def head(self, key: str) -> Object:
        self.requests["head"] += 1
        if key not in self.keys:
            raise FileNotFoundError(key)
        return self.object(key)

    def confirm_nothing(self, prefix: str) -> None:
        """It is sure."""


class SlowKeys(Keys):
    """Each object comes after another thread had its turn."""

    def objects(self, prefix: str) -> Iterator[Object]:
        for k in self.keys:
            Event().wait(0.0005)
            if k.startswith(f"{prefix}/"):
                yield self.object(k)


def listed(*keys: str) -> tuple[Keys, Tree]:
    """A store with these keys, and the tree of what lies below ``run``, which is known."""
    store = Keys(*keys)
    tree = Tree(store)  # type: ignore[arg-type]
    tree.list_below("run")
    return store, tree


def names(tree: Tree, key: str) -> list[str]:
    return [e.name for e in tree.entries(key)]


def test_who_lists_a_part_anew_meets_nothing_late_while_all_is_listed_anew() -> None:
    tree = Tree(SlowKeys(*(f"run/a/b{i}/{j}" for i in range(4) for j in range(4))))  # type: ignore[arg-type]
    tree.list_below("run")

    def list_again(key: str) -> None:
        for _ in range(10):
            tree.relist(key)

    threads = [Thread(target=list_again, args=(key,)) for key in ("run", "run/a", "run/a/b1", "run/a/b2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tree.late == {}


def test_a_part_of_what_is_known_is_listed_anew() -> None:
    store, tree = listed("run/a/1", "run/a/2", "run/b/1")
    tree.list_below("run/a")
    assert store.requests["list"] == 1
    store.keys[:] = ["run/a/3", "run/b/1"]
    tree.refresh("run/a")
    assert store.requests["list"] == 2
    assert [names(tree, key) for key in ("run/a", "run", "run/b")] == [["3"], ["a", "b"], ["1"]]
    store.keys.remove("run/a/3")
    tree.refresh("run/a")
    assert names(tree, "run") == ["b"] and not tree.is_directory("run/a"), "what is gone is none any more"
    store.keys.append("run/a/2")
    tree.refresh("run/a")
    assert names(tree, "run") == ["a", "b"] and names(tree, "run/a") == ["2"]


def test_an_object_that_is_asked_for_by_itself_is_the_one_that_is_there_now() -> None:
    """Also where all that lies about it was listed before."""
    store, tree = listed("run/a/1", "run/b/1")
    store.etags["run/a/1"] = "another"
    store.keys.append("run/a/2")
    for key, etag in (("run/a/1", "another"), ("run/a/2", "run/a/2")):
        tree.refresh(key)
        assert tree.object(key).etag == etag


def test_while_one_list_hangs_nobody_else_waits() -> None:
    store, asked, go = Keys("run/a/1", "other/1"), Event(), Event()
    tree = Tree(store)  # type: ignore[arg-type]
    tree.list_below("other")
    real = store.objects

    def hangs(prefix: str) -> Iterator[Object]:
        asked.set()
        go.wait()
        return real(prefix)

    store.objects = hangs  # type: ignore[method-assign]
    thread = Thread(target=tree.list_below, args=("run",))
    thread.start()
    asked.wait()
    assert names(tree, "other") == ["1"] and not tree.is_directory("run/a")
    go.set()
    thread.join()
    assert names(tree, "run") == ["a"]


SOME = st.sets(st.integers(0, 19))
KEYS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(lambda names: "/".join((*names, "x")))


@pytest.mark.slow
@examples(200)
@given(
    st.sets(KEYS, min_size=1, max_size=20),
    SOME,
    SOME,
    st.sets(st.integers(0, 19), min_size=1),
    st.integers(1, 30),
)
def test_what_is_asked_about_again_is_as_it_is_now(
    before: set[str], gone: set[int], changed: set[int], asked: set[int], page: int
) -> None:
    """Whatever lists are put together: by no more requests than there are directories to ask about."""
    keys = sorted(before)
    store, tree = listed(*(f"run/{key}" for key in keys))
    wanted = [f"run/{keys[i]}" for i in asked if i < len(keys)]
    store.etags.update({f"run/{keys[i]}": "another" for i in changed if i < len(keys)})
    store.keys = [k for i, k in enumerate(store.keys) if i not in gone]
    store.requests.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(mounts._trees, (store.url, ()), tree)
        patch.setattr(mounts, "PAGE", page)
        patch.setattr(mounts, "FEW", 0)
        assert mounts.refresh_objects(f"{store.url}/{key}" for key in wanted) == {}
    for key in wanted:
        if key in store.keys:
            assert tree.object(key).etag == store.etags.get(key, key)
        else:
            with pytest.raises(FileNotFoundError):
                tree.object(key)
    homes = {key.rpartition("/")[0] for key in wanted}
    assert store.requests["list"] + store.requests["head"] <= max(len(homes), len(wanted))


@examples(100)
@given(keys=st.sets(KEYS, min_size=1, max_size=12), hidden=st.sets(st.integers(0, 11)), deep=st.booleans())
def test_what_an_earlier_list_lacked_is_noted(keys: set[str], hidden: set[int], deep: bool) -> None:
    """By a list of all, or by one of each directory: below a new one all is new."""
    every = sorted(f"run/{key}" for key in keys)
    lacked = {key for i, key in enumerate(every) if i in hidden}
    every.append("run/z")
    store, tree = listed(*(key for key in every if key not in lacked))
    store.keys = every
    known = {str(home) for key in {*every} - lacked for home in PurePosixPath(key).parents if home.parts}
    if deep:
        tree.relist("run")
        assert set(tree.late) == lacked
        return
    for home in known:
        tree.refresh_directory(home)
    assert lacked <= {k for k in every for late in tree.late if k == late or k.startswith(f"{late}/")}
    assert all(any(k == late or k.startswith(f"{late}/") for k in lacked) for late in tree.late)


@pytest.mark.parametrize("written", [False, True])
def test_what_is_late_and_old_is_said(written: bool) -> None:
    store = Keys("run/a/1")
    tree = Tree(store)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(mounts._trees, (store.url, ()), tree)
        mounts.refresh(f"{store.url}/run")
        store.keys = ["run/a/1", "run/b/1"]
        assert mounts.refresh_objects([f"{store.url}/run"], are_directories=True) == {}
        found = mounts.find_late(f"{store.url}/run", [], lambda _mtime: written)
        assert found in ({None} if written else {f"{store.url}/run/b", f"{store.url}/run/b/1"})
        mounts.refresh(f"{store.url}/run")
        assert mounts.find_late(f"{store.url}/run", [], lambda _mtime: False) is None


def test_what_lies_beside_a_file_is_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is one file may have lost what lies beside it; and nothing of the list is forgotten."""
    store, tree = listed("run/a/1", "run/b/1", "run/b/2")
    monkeypatch.setattr(mounts, "tree_of", lambda url: (tree, url.removeprefix("s3://bucket/")))
    store.requests.clear()
    store.keys.append("run/b/3")
    below = ("s3://bucket/run/b/1", "s3://bucket/run/b/2")
    assert mounts.find_late("s3://bucket/run", below, lambda _: False) == "s3://bucket/run/b/3"
    assert store.requests == {"list": 1}
    assert tree.object("run/a/1") == store.object("run/a/1") and store.requests == {"list": 1}
