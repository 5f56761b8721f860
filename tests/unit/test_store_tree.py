"""The tree of a store's keys: what is listed anew replaces what was known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ckpt_tools.storage.stores.store import Object
from ckpt_tools.storage.stores.tree import Tree


class Keys:
    """A store that is a list of keys."""

    url = "s3://bucket"

    def __init__(self, *keys: str) -> None:
        self.keys, self.requests = list(keys), Counter[str]()

    def objects(self, prefix: str) -> Iterator[Object]:
        self.requests["list"] += 1
        yield from (Object(k, 1, 0, f"{k}{len(self.keys)}") for k in self.keys if k.startswith(f"{prefix}/"))

    def head(self, key: str) -> Object:
        raise FileNotFoundError(key)

    def confirm_nothing(self, prefix: str) -> None:
        """It is sure."""


def test_a_part_of_what_is_known_is_listed_anew() -> None:
    store = Keys("run/a/1", "run/a/2", "run/b/1")
    tree = Tree(store)  # type: ignore[arg-type]
    tree.list_below("run")
    tree.list_below("run/a")
    assert store.requests["list"] == 1
    store.keys[:] = ["run/a/3", "run/b/1"]
    tree.refresh("run/a")
    assert store.requests["list"] == 2
    assert tree.names("run/a") == ["3"] and tree.names("run") == ["a", "b"] and tree.names("run/b") == ["1"]


def test_what_is_gone_is_no_directory_any_more() -> None:
    store = Keys("run/a/1", "run/b/1")
    tree = Tree(store)  # type: ignore[arg-type]
    tree.list_below("run")
    store.keys.remove("run/a/1")
    tree.refresh("run/a")
    assert tree.names("run") == ["b"] and not tree.is_directory("run/a")
    store.keys.append("run/a/2")
    tree.refresh("run/a")
    assert tree.names("run") == ["a", "b"] and tree.names("run/a") == ["2"]
