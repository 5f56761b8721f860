"""The tree of a store's keys: what is listed anew replaces what was known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from ckpt_tools.storage.stores import mounts, refresh
from ckpt_tools.storage.stores.store import Object
from ckpt_tools.storage.stores.tree import Tree


class Keys:
    """A store that is a list of keys."""

    url = "s3://bucket"

    def __init__(self, *keys: str) -> None:
        self.keys, self.requests, self.etags = list(keys), Counter[str](), dict[str, str]()

    def objects(self, prefix: str) -> Iterator[Object]:
        self.requests["list"] += 1
        yield from (self.object(k) for k in self.keys if k.startswith(f"{prefix}/"))

    def directory(self, prefix: str) -> tuple[list[Object], list[str]]:
        self.requests["list"] += 1
        below = {k[len(prefix) + 1 :]: k for k in self.keys if k.startswith(f"{prefix}/")}
        found = [self.object(k) for name, k in below.items() if "/" not in name]
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


def names(tree: Tree, key: str) -> list[str]:
    return [e.name for e in tree.entries(key)]


def test_a_part_of_what_is_known_is_listed_anew() -> None:
    store = Keys("run/a/1", "run/a/2", "run/b/1")
    tree = Tree(store)  # type: ignore[arg-type]
    tree.list_below("run")
    tree.list_below("run/a")
    assert store.requests["list"] == 1
    store.keys[:] = ["run/a/3", "run/b/1"]
    tree.refresh("run/a")
    assert store.requests["list"] == 2
    assert (
        names(tree, "run/a") == ["3"] and names(tree, "run") == ["a", "b"] and names(tree, "run/b") == ["1"]
    )


def test_what_is_gone_is_no_directory_any_more() -> None:
    store = Keys("run/a/1", "run/b/1")
    tree = Tree(store)  # type: ignore[arg-type]
    tree.list_below("run")
    store.keys.remove("run/a/1")
    tree.refresh("run/a")
    assert names(tree, "run") == ["b"] and not tree.is_directory("run/a")
    store.keys.append("run/a/2")
    tree.refresh("run/a")
    assert names(tree, "run") == ["a", "b"] and names(tree, "run/a") == ["2"]


def test_an_object_that_is_asked_for_by_itself_is_the_one_that_is_there_now() -> None:
    """Also where all that lies about it was listed before."""
    store = Keys("run/a/1", "run/b/1")
    tree = Tree(store)  # type: ignore[arg-type]
    tree.list_below("run")
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


KEYS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(lambda names: "/".join((*names, "x")))


@pytest.mark.slow
@examples(200)
@given(
    before=st.sets(KEYS, min_size=1, max_size=20),
    gone=st.sets(st.integers(0, 19)),
    changed=st.sets(st.integers(0, 19)),
    asked=st.sets(st.integers(0, 19), min_size=1),
    page=st.integers(1, 30),
)
def test_what_is_asked_about_again_is_as_it_is_now(
    before: set[str], gone: set[int], changed: set[int], asked: set[int], page: int
) -> None:
    """Whatever lists are put together: by no more requests than there are directories to ask about."""
    keys = sorted(before)
    store = Keys(*(f"run/{key}" for key in keys))
    tree = Tree(store)  # type: ignore[arg-type]
    tree.list_below("run")
    wanted = [f"run/{keys[i]}" for i in asked if i < len(keys)]
    store.etags.update({f"run/{keys[i]}": "another" for i in changed if i < len(keys)})
    store.keys = [k for i, k in enumerate(store.keys) if i not in gone]
    store.requests.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(mounts._trees, (store.url, ()), tree)
        patch.setattr(refresh, "PAGE", page)
        patch.setattr(refresh, "FEW", 0)
        assert refresh.refresh_objects(f"{store.url}/{key}" for key in wanted) == {}
    for key in wanted:
        if key in store.keys:
            assert tree.object(key).etag == store.etags.get(key, key)
        else:
            with pytest.raises(FileNotFoundError):
                tree.object(key)
    homes = {key.rpartition("/")[0] for key in wanted}
    assert store.requests["list"] + store.requests["head"] <= max(len(homes), len(wanted))
