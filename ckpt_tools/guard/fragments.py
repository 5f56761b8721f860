"""What each rank seals of what it wrote, alone; and one seal made of what all of them sealed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from ckpt_tools import __version__
from ckpt_tools.discovery import group as grouping
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import finding
from ckpt_tools.formats.seals import document, names
from ckpt_tools.guard.sealed_files import SealOptions, digest_pass, identities, sealed_files, state_of
from ckpt_tools.guard.targets import described, files_of
from ckpt_tools.guard.writing import opened_home, put, tidy
from ckpt_tools.inspection.digest_pass import Digested, DigestPass
from ckpt_tools.inspection.seals import Known, replaces
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Part
from ckpt_tools.model.seal import Fragment, Seal, SealedCheckpoint, SealedFile, SealedOne
from ckpt_tools.reading.mirrored import place
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Session, formats_allowed
from ckpt_tools.storage.retry import is_directory
from ckpt_tools.storage.urls import is_normal, is_url


def of_one_rank(home: str, options: SealOptions) -> Iterator[SealedOne]:
    """The fragment of one rank: the files that it names, or those that are its own by their names; rank 0
    takes what is nobody's own as well.

    The save may still go on elsewhere, so nothing is asked of other files. Raises UsageError where ``home``
    is no directory, or a file lies outside it.
    """
    fragment = options.fragment
    assert fragment is not None  # noqa: S101 - for the type checker: the caller has looked
    if not is_directory(home):
        raise UsageError(
            f"{home} is no directory", "name the directory of the checkpoint that the ranks write"
        )
    s = open_session(home, options.read)
    paths = [_inside(home, f) for f in options.files] or _own(s, home, fragment)
    seal = f"{home}/{names.FRAGMENTS}/{names.fragment_name(fragment.rank)}"
    if options.read.seal_dir is not None:
        seal = place(options.read.seal_dir, seal)
    done = SealedOne(home, seal, "sealed", f"rank {fragment.rank} of {fragment.world_size}", len(paths))
    one = partial(_file, s, digest_pass(s, options), home, {p.path: p for p in s.parts})
    read = sealed_files(paths, one, identities(paths))
    done = replace(done, size=sum(f.size for f in read.files), findings=read.wrong)
    if read.wrong:
        yield replace(done, state=state_of(read.wrong))
        return
    if not options.dry_run:
        sealed = Seal(__version__, _of_home(s, home), options.algorithm, read.files, fragment)
        put(seal, document.text(sealed), away=options.read.seal_dir is not None)
        tidy(os.path.dirname(seal))
    yield replace(done, state="would-seal" if options.dry_run else "sealed")


def _inside(home: str, name: str) -> str:
    path = os.path.join(home, name) if is_url(home) else os.path.normpath(os.path.join(home, name))
    if not path.startswith(f"{home.rstrip('/')}/") or not is_normal(path):
        raise UsageError(f"{name} lies outside {home}", "a seal names only files of its checkpoint")
    return path


def _own(s: Session, home: str, fragment: Fragment) -> list[str]:
    """The files of a rank, by their names."""
    ranks = {p.path: p.rank for p in s.parts}
    everything = sorted({*files_of(home), *ranks})
    if fragment.rank:
        return [path for path in everything if ranks.get(path) == fragment.rank]
    return [path for path in everything if ranks.get(path) in (None, 0)]


def _file(s: Session, reading: DigestPass, home: str, parts: Mapping[str, Part], path: str) -> Digested:
    name, part = os.path.relpath(path, home), parts.get(path)
    expect = formats_allowed(part, s.layouts.piece_of(part)) if part else ()
    described_by = s.indexes.described(path)
    if s.indexes.lone(path) is not None:  # only its index, which another rank writes, can explain it
        return reading.read_plain(path, name)
    return reading.read(path, name, expect, described_by)


def _of_home(s: Session, home: str) -> SealedCheckpoint:
    """What the directory holds, as far as its names tell."""
    found = [c for c in grouping.group(s.parts, s.layouts) if {p.home for p in c.parts} == {home}]
    return described(found[0], s.root) if len(found) == 1 else SealedCheckpoint()


# ---- one of many


def merged(root: str, options: SealOptions) -> Iterator[SealedOne]:
    """One seal for each directory in which all ranks have sealed their files; the fragments go, once it is
    written. No file is read.
    """
    seals = open_session(root, options.read).indexes.seals  # the files of 100,000 ranks are not kept
    if seals is None:
        return
    seals.read_all()
    by_home: dict[str, list[Known]] = {}
    for known in seals.known:
        if known.seal.fragment is not None:
            by_home.setdefault(known.base, []).append(known)
    for home, found in sorted(by_home.items()):
        fragments = sorted(found, key=lambda k: k.path)
        seal = f"{os.path.dirname(os.path.dirname(fragments[0].path))}/{names.NAME}"
        done = SealedOne(home, seal, "merged", f"{len(fragments)} ranks")
        if not options.dry_run:
            for directory in (os.path.dirname(seal), os.path.dirname(fragments[0].path)):
                tidy(directory)
        if whole := next((k.seal for k in seals.at(seal) if replaces(k, fragments)), None):
            done = replace(done, files=len(whole.files), size=sum(f.size for f in whole.files))
            if not options.dry_run:  # what somebody has left who died while he merged
                _remove(seal, fragments)
            yield done
            continue
        yield _merged(done, fragments, seals.findings, options)


def _remove(seal: str, fragments: Sequence[Known]) -> None:
    remove_fragments(os.path.dirname(seal), [os.path.basename(k.path) for k in fragments])


def _merged(
    done: SealedOne, fragments: Sequence[Known], findings: dict[str, list[Finding]], options: SealOptions
) -> SealedOne:
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
        waits = {f.code for f in wrong} == {"seal-incomplete"}
        return replace(done, state="unfinished" if waits else state_of(wrong), findings=tuple(wrong))
    done = replace(done, files=len(files), size=sum(f.size for f in files.values()))
    if options.dry_run:
        return done
    made = Seal(__version__, first.seal.checkpoint, algorithms.pop(), tuple(files[n] for n in sorted(files)))
    put(done.seal, document.text(made), away=options.read.seal_dir is not None)
    _remove(done.seal, fragments)
    return done


def remove_fragments(home: str, only: Sequence[str] | None = None) -> None:
    """Remove fragments, all or those of these names, once the seal that replaces them is there."""
    if is_url(home):
        _delete_fragments(f"{home}/{names.FRAGMENTS}", only)
        return
    with suppress(OSError):  # what is left is compared with the files as the seal is
        with opened_home(f"{home}/{names.FRAGMENTS}") as at:
            for name in filter(names.is_fragment, os.listdir(at) if only is None else only):
                os.unlink(name, dir_fd=at)
        os.rmdir(f"{home}/{names.FRAGMENTS}")


def _delete_fragments(home: str, only: Sequence[str] | None) -> None:
    """The same in a store."""
    from ckpt_tools.storage.stores.mounts import store_of

    with suppress(OSError):
        store, key = store_of(home)
        found = [of.key for of in store.directory(key)[0]] if only is None else [f"{key}/{n}" for n in only]
        store.delete([k for k in found if names.is_fragment(k.rpartition("/")[2])])
