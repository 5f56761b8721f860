"""Which store a URL belongs to: one client per bucket, with the options that the command was given."""

from __future__ import annotations

import errno
import os
from threading import RLock
from typing import TYPE_CHECKING, Any

from ckpt_tools.model.selection import StoreOptions
from ckpt_tools.storage.stores.options import open_options
from ckpt_tools.storage.stores.store import OBJECT_STORES
from ckpt_tools.storage.urls import split

if TYPE_CHECKING:
    from ckpt_tools.storage.stores.store import Store
    from ckpt_tools.storage.stores.tree import Tree

_lock = RLock()
_trees: dict[tuple[str, tuple[tuple[str, str], ...]], Tree] = {}
_told = [StoreOptions()]


def configure(options: StoreOptions = StoreOptions()) -> None:  # noqa: B008 - a frozen value
    """Options for every store that is opened from now on."""
    with _lock:
        if options != _told[0]:
            _told[0] = options
            _trees.clear()


def forget() -> None:
    """Open every store anew: the environment may say something else by now."""
    with _lock:
        _trees.clear()


def configured() -> StoreOptions:
    """The options that stores are opened with."""
    return _told[0]


def tree_of(url: str) -> tuple[Tree, str]:
    """The tree of a URL's store, and its key there. Raises OSError, UsageError and CannotLook."""
    from ckpt_tools.storage.stores.tree import Tree

    name, key = split(url)
    with _lock:
        options = _told[0]
        place = (name, tuple(sorted(options.of(url).items())))
        tree = _trees.get(place)
        if tree is None:
            tree = _trees[place] = Tree(opened(name, options, url))
        return tree, key


def refresh(url: str) -> None:
    """Forget what the store of a URL has, and list what lies below it now. Raises OSError."""
    tree, key = tree_of(url)
    tree.late.clear()
    tree.refresh(key)


def store_of(url: str) -> tuple[Store, str]:
    """The store of a URL, and the key of the URL in it. Raises OSError."""
    tree, key = tree_of(url)
    return tree.store, key


def opened(name: str, options: StoreOptions, url: str = "") -> Store:
    """A store with the options for what lies at ``url``. Raises OSError, and as ``open_options``."""
    scheme = name.partition("://")[0]
    given = open_options(url or name, options, os.environ)
    try:
        if scheme in OBJECT_STORES:
            import obstore.store

            from ckpt_tools.storage.stores.object_store import ObjectStore
            from ckpt_tools.storage.stores.refused import not_opened

            def client(address: str) -> Any:
                try:
                    return obstore.store.from_url(address, **given)  # {} would hide the environment
                except Exception as e:
                    raise not_opened(e, address.partition("?")[0].rstrip("/"), given) from None

            return ObjectStore(name, client(name), client if scheme in ("http", "https") else None)
        from ckpt_tools.storage.stores.filesystem import open_filesystem

        return open_filesystem(name, given)
    except ImportError as e:
        extra = "cloud" if scheme in OBJECT_STORES else "fsspec"
        text = f"{e.name} is not installed: pip install 'ckpt-tools[{extra}]'"
        if e.name is None:  # what fsspec says of a package that one of its file systems needs
            text = f"a package that {scheme}:// needs is not installed: {e}"
        raise OSError(errno.ENOPKG, text, name) from None
