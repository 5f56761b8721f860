"""One seal merged from the fragments that the ranks have written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec.structs import replace

from ckpt_tools import __version__
from ckpt_tools.findings import finding
from ckpt_tools.formats.seals import document
from ckpt_tools.guard.writing import open_home, remove_abandoned, write_seal
from ckpt_tools.inspection.seals import Known, replaces
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.seal import Seal, SealedFile, SealedOne
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.reading.opening import open_session
from ckpt_tools.storage.urls import is_url


def merge_below(root: str, read: ReadOptions, *, dry_run: bool) -> Iterator[SealedOne]:
    """Write one seal for each directory in which all ranks have sealed their own files; yield the results."""
    seals = open_session(root, read).indexes.seals  # the files of 100,000 ranks are not kept
    seals.read_all()
    by_home: dict[str, list[Known]] = {}
    for known in seals.known.values():
        if known.seal.fragment is not None:
            by_home.setdefault(known.base, []).append(known)
    for home, found in sorted(by_home.items()):
        fragments = sorted(found, key=lambda k: k.path)
        above = os.path.dirname(os.path.dirname(fragments[0].path))
        result = SealedOne(home, f"{above}/{document.NAME}", "merged", f"{len(fragments)} ranks")
        for directory in () if dry_run else (above, os.path.dirname(fragments[0].path)):
            remove_abandoned(directory)
        # a merge that was interrupted has left a whole seal
        before = seals.known.get(result.seal)
        whole = before.seal if before is not None and replaces(before, fragments) else None
        if whole is None:
            whole, wrong = _merge(fragments, seals.findings)
            if whole is None:
                yield replace(result, state=find_state(wrong), findings=tuple(wrong))
                continue
            if not dry_run:
                write_seal(result.seal, document.text(whole), away=read.seal_dir is not None)
        if not dry_run:
            remove_fragments(above, [os.path.basename(k.path) for k in fragments])
        yield replace(result, files=len(whole.files), size=sum(f.size for f in whole.files))


def _merge(
    fragments: Sequence[Known], findings: dict[str, list[Finding]]
) -> tuple[Seal | None, list[Finding]]:
    """Return (the seal of all fragments, []), or (None, why they cannot be merged, from ``findings`` too)."""
    first = fragments[0]
    wrong = [replace(f, path=k.path) for k in fragments for f in findings.get(k.path, ())]
    algorithms = {k.seal.algorithm for k in fragments}
    if len(algorithms) > 1:
        why = f"its fragments have digests of {' and '.join(sorted(algorithms))}"
        wrong.append(finding("seal-incomplete", why, path=first.path))
    files = dict[str, SealedFile]()
    for known in fragments:
        for f in known.seal.files:
            if files.setdefault(f.path, f) != f:
                why = f"another rank has sealed other contents of {f.path!r}"
                wrong.append(finding("seal-mismatch", why, path=known.path))
    if wrong:
        return None, wrong
    sealed = tuple(files[name] for name in sorted(files))
    return Seal(__version__, first.seal.checkpoint, algorithms.pop(), sealed), []


def find_state(wrong: Sequence[Finding]) -> str:
    """Return the state of a target that is not sealed, by the most serious finding."""
    codes = {f.code for f in wrong}
    if codes & {"unreadable", "unread-pickle"}:
        return "unreadable"
    if "in-use" in codes:
        return "in-use"
    return "unfinished" if codes in ({"unfinished-save"}, {"seal-incomplete"}) else "broken"


def remove_fragments(home: str, names: Sequence[str] | None = None) -> None:
    """Remove the fragments of seals below a checkpoint's directory, all or those with the given file names,
    after the seal that replaces them is written. Fragments that stay are compared with the files too.
    """
    home = f"{home}/{document.FRAGMENTS}"
    with suppress(OSError):
        if is_url(home):
            from ckpt_tools.storage.stores.mounts import store_of

            store, key = store_of(home)
            listed = [o.key.rpartition("/")[2] for o in store.directory(key)[0]] if names is None else names
            store.delete([f"{key}/{name}" for name in listed if document.is_fragment(name)])
            return
        with open_home(home) as directory_fd:
            for name in filter(document.is_fragment, os.listdir(directory_fd) if names is None else names):
                os.unlink(name, dir_fd=directory_fd)
        os.rmdir(home)
