"""Names in a store for the word at the cursor: one list of a directory, as the commands would ask for it.

Nothing is said of what goes wrong: a shell shows it in the middle of the line that is being typed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_tools.cli.candidates.live import FILE, SAVE, Names, in_order, in_time

SECONDS = 2.0
"""How long to wait for a store."""


def urls(begun: str, options: Sequence[str]) -> list[str]:
    """The URLs that begin so and are one name longer; those of directories end with "/". Buckets are not
    asked for.
    """
    above, slash, _ = begun.rpartition("/")
    if not slash or above.endswith((":", ":/")):
        return []
    return [f"{above}/{name}" for name in listed(above, options)]


def names(url: str, options: Sequence[str]) -> Names:
    """The runs and steps directly below a URL."""
    runs, steps = set[str](), set[int]()
    for name in listed(url.rstrip("/"), options):
        directory = name.endswith("/")
        if m := (SAVE if directory else FILE).fullmatch(name.rstrip("/")):
            steps.add(int(m[1]))
        elif directory and not name.startswith("."):
            runs.add(name.rstrip("/"))
    return in_order(runs, steps)


def listed(url: str, options: Sequence[str]) -> list[str]:
    """The names in a directory, sorted; those of directories end with "/"."""
    found: list[str] = []
    in_time(lambda: found.extend(_names(url, options)), SECONDS)
    return found


def _names(url: str, options: Sequence[str]) -> list[str]:
    from ckpt_tools.errors import CkptError
    from ckpt_tools.settings import resolve as settings
    from ckpt_tools.storage.signed import query_of
    from ckpt_tools.storage.stores import mounts

    if query_of(url):
        return []
    try:
        stores = settings.resolve({"store-option": list(options)}).stores
        if stores is not None:
            mounts.configure(stores)
        tree, key = mounts.tree_of(url)
        objects, below = tree.store.directory(key)
    except (OSError, CkptError):
        return []
    files = [of.key.rpartition("/")[2] for of in objects if not of.is_folder]
    return sorted([*files, *(f"{name}/" for name in below)])
