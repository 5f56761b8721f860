"""The rows of a load plan: each file with what verification saw of it, and the fingerprint of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from ckpt_tools.model.plan import FileLoad, Load, RankLoad
from ckpt_tools.model.report import Level, Report
from ckpt_tools.storage.urls import is_url


def file_loads(loads: Iterable[Load], reports: Mapping[str, Report]) -> tuple[FileLoad, ...]:
    """Return the loads of one rank with what verification saw of each file."""
    rows = list[FileLoad]()
    for load in loads:
        p, report, (etag, version) = load.part, reports.get(load.part.path), _in_store(load.part.path)
        row = FileLoad(
            role=p.role,
            path=p.path,
            size=p.size,
            mtime_ns=p.mtime_ns,
            level=report.level if report else Level.PRESENCE,
            coverage=report.coverage if report else 0.0,
            source_rank=p.rank,
            substituted=load.substituted and p.rank is not None,
            reason=load.reason,
            etag=etag,
            version=version,
        )
        rows.append(row)
    return tuple(rows)


def _in_store(path: str) -> tuple[str, str]:
    """Return the ETag and the version that a file had when it was judged; nothing of one of this machine."""
    if is_url(path):
        from ckpt_tools.storage.stores.refresh import object_of

        try:
            of = object_of(path)
        except OSError:
            pass  # it is looked at again before anybody is told of it
        else:
            return of.etag, of.version
    return "", ""


def fingerprint(root: str, ranks: Sequence[RankLoad], shared: Sequence[FileLoad] = ()) -> str:
    """Return XXH3-128 (hex) over the sorted (path below ``root``, size, mtime_ns) of the files, with the
    ETags of those in a store, and the rank map.
    """
    import xxhash

    def name(f: FileLoad) -> str:
        return f.path.removeprefix(root).lstrip("/")

    digest = xxhash.xxh3_128()
    planned = chain(shared, chain.from_iterable(r.files for r in ranks))
    for path, size, mtime_ns, etag in sorted({(name(f), f.size, f.mtime_ns, f.etag) for f in planned}):
        tag = f"\0{etag}" if etag else ""
        digest.update(f"{path}\0{size}\0{mtime_ns}{tag}\n".encode("utf-8", "surrogateescape"))
    for r in ranks:
        names = "\0".join(map(name, r.files))
        digest.update(f"{r.rank}\0{names}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
