"""``ckpt layouts``: the known layouts, and what the templates of one of them match."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from shlex import quote

from ckpt_tools.cli import options, output
from ckpt_tools.cli.options import parameter
from ckpt_tools.cli.output import read_settings
from ckpt_tools.discovery.seals import read_texts
from ckpt_tools.discovery.walk import discover
from ckpt_tools.errors import CannotLook, NoCheckpoint, UsageError
from ckpt_tools.layouts import BUILT_IN, Layout, Layouts, Piece, package_of
from ckpt_tools.layouts.guess import Miss, find_tracker, guess, near_miss
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.output import catalogue
from ckpt_tools.output.catalogue import render
from ckpt_tools.planning.unplaced import find_undescribed, look_inside
from ckpt_tools.reading.opening import open_session
from ckpt_tools.settings.resolve import Settings, require_known
from ckpt_tools.storage import trust
from ckpt_tools.storage.listing import walk
from ckpt_tools.storage.retry import ABSENT, is_directory
from ckpt_tools.storage.urls import to_absolute
from ckpt_tools.storage.writes import write_all

_TRUSTED = options.TRUST.split()


@options.ask(
    ("table", "json"),
    "root",
    parameter("--check", "Say what each template matches below ROOT, and what it narrowly misses."),
    parameter("--guess", "Print a [[layout]] for ckpt.toml for the files below ROOT that no layout knows."),
    parameter("--write", "Write the lines of --guess to the ckpt.toml that commands read here."),
    "layout output_file format json quiet color",
    options.TRUST,
    reads_settings=False,
)
def layouts(asked: options.Asked) -> int:
    """List the known layouts. With the name of one in the place of ROOT: say which files make a checkpoint,
    which file names the latest one, and what cannot be seen.

    With --check: try the templates of your own layouts (or of the one that --layout names) on ROOT. Exit 1
    when a template matches nothing.

    With --guess: print the lines for ckpt.toml that describe files no layout recognises, derived from their
    names. Their first line says where to save them, and --write does that; read their comments, then use
    --check.

    Examples:
    ckpt layouts  # all known layouts
    ckpt layouts --check run --layout megatron  # what each template matches, or narrowly misses
    ckpt layouts --check run --layout megatron --json  # the same for a program
    ckpt layouts --guess mine  # a [[layout]] for ckpt.toml, from the names of your own files
    ckpt layouts --json  # all for a program
    """
    to, given = asked.to, asked.given
    check, guess, root = given["check"], given["guess"], given["root"]
    # a list of layouts scans no tree, so that the ckpt.toml of this directory may add layouts
    flags = ["root", "layout", *_TRUSTED] if check or guess else _TRUSTED
    settings = read_settings({name: given[name] for name in flags}, to)
    output.say_broken_plugins(("layouts",))
    known = settings.layouts or BUILT_IN
    if check and guess:
        raise UsageError("--check and --guess cannot be combined", "use one of them")
    if guess:
        if to.format == "json":
            raise UsageError("--guess prints TOML", "leave --json out")
        return _guess_layout(settings, known, to, write=given["write"])
    if given["write"]:
        raise UsageError("--write has nothing to write", "add --guess")
    if check:
        return _check_layouts(asked, settings.root, settings.values.get("layout"), known)
    if root is None:
        entries = [_entry(layout) for layout in known]
        rows = sorted(entries, key=lambda e: str(e["name"]))
        table = catalogue.table(rows, ("name", "title", "package"), to.view)
        text = f"{table}\n{len(rows)} layouts: 'ckpt layouts NAME' describes one\n"
        return asked.catalogue("layouts", entries, text)
    hint = "a ROOT is only looked at with --check or --guess; 'ckpt layouts' lists all layouts"
    require_known(root, (layout.name for layout in known), "layout", hint)
    return _describe_layout(asked, known[root])


def _entry(layout: Layout) -> dict[str, object]:
    """Return what is known of a layout, as a JSON object."""
    return {
        "name": layout.name,
        "title": layout.title,
        "pieces": [{"name": p.name, "role": p.role, "template": p.template} for p in layout.pieces],
        "tracker": layout.tracker.file or None,
        "reshardable": layout.reshardable,
        "limits": list(layout.limits),
        "reference": layout.reference,
        "package": package_of(layout.name),
    }


def _describe_layout(asked: options.Asked, layout: Layout) -> int:
    """Print what is known of a layout: the names of its files, its tracker, its limits. Return 0."""
    entry = _entry(layout)
    # a template with a blank stands for no file name: contents tell its files
    named = (p for p in layout.pieces if " " not in p.template)
    files = list(dict.fromkeys(f"{_LONG.sub(_shorten_choice, p.template)} ({p.role})" for p in named))
    fields = ("title", "files", "tracker", "limits", "reference", "package")
    pages = [{**entry, "files": files}]
    return asked.catalogue("layouts", [entry], catalogue.list_blocks(pages, fields, asked.to.view))


_LONG = re.compile(r"<[^>|]*(?:\|[^>|]*){11,}>")


def _shorten_choice(words: re.Match[str]) -> str:
    """Return a template's field of many words, such as ``<a|b|…>``, with the first four."""
    first = words[0].split("|")
    return f"{'|'.join(first[:4])}|… {len(first) - 4} more>"


def _guess_layout(settings: Settings, known: Layouts, to: output.Output, *, write: bool) -> int:
    """Print a table [[layout]] for files that no layout knows, or ``write`` it to ckpt.toml. Return 0."""
    session = open_session(settings.root, ReadOptions(layouts=known))
    root, files = session.root, find_undescribed(session)
    if not files:
        text = f"no file in {root} is in a checkpoint format and in no layout"
        raise NoCheckpoint(text, f"'ckpt ls {quote(root)}' shows what is there")
    placed = {os.path.relpath(p.path, root) for p in session.parts} - files.keys()
    guessed = guess(files, placed, partial(look_inside, session))
    if not guessed.pieces:
        text = f"nothing is guessed for {root}: {guessed.why}"
        raise UsageError(text, "write its table by hand: docs/adding-a-layout.md")
    name = next(name for n in count(1) if (name := f"guessed{n if n > 1 else ''}") not in known)
    tracker = find_tracker(guessed.pieces, lambda run: read_texts(os.path.join(root, run)))
    table = "tool.ckpt.layout" if os.path.basename(settings.file or "") == "pyproject.toml" else "layout"
    # Commands started in this directory must find the file, which must not lie in ROOT itself.
    here = os.path.realpath(os.getcwd())
    home = os.path.dirname(root) if f"{here}/".startswith(f"{root}/") else here
    file, lines = settings.file or f"{home}/ckpt.toml", render(guessed, name, tracker, table)
    then = f"read its comments, then: ckpt plan {quote(root)}"
    advice, gap = ("Add these lines to", "\n") if settings.file else ("Save these lines as", "")
    if not write:
        to.out(f"# {advice} {file}, {then}\n{lines}")
        return 0
    _append_lines(settings, file, f"{gap}{lines}", sure=guessed.is_sure)
    to.out(f"{file} describes {root} to commands that start in {os.path.dirname(file)}: {then}\n")
    return 0


def _append_lines(settings: Settings, file: str, lines: str, *, sure: bool) -> None:
    """Add lines to a trusted file, or create it. Raise UsageError, CannotLook and Untrusted."""
    if settings.refused:
        raise settings.refused
    if not sure:
        text = "their names alone do not say which save and which rank each of these files is of"
        raise UsageError(text, "leave --write out, correct the lines, and save them")
    try:
        data, flags = lines.encode(), os.O_WRONLY | os.O_APPEND | (0 if settings.file else os.O_EXCL)
        with trust.directory(os.path.dirname(file), settings.trust) as at:
            fd = trust.create(os.path.basename(file), flags, at, settings.trust)
            with open(fd, "ab", buffering=0):
                write_all(fd, data)
    except OSError as e:
        raise CannotLook(f"{file} cannot be written: {e.strerror}") from e
    except UnicodeEncodeError as e:
        raise UsageError(f"{file} cannot hold the name of a file that is not text", "rename it") from e


def _check_layouts(asked: options.Asked, root: str, only: str | None, known: Layouts) -> int:
    """Print what the templates of a layout (None: of the user's own) match. Return 1 if one has no match."""
    if only is not None:
        require_known(only, (layout.name for layout in known), "layout", "'ckpt layouts' lists them")
    chosen = [known[only]] if only is not None else known.own
    if not chosen:
        hint = "add [[layout]] to ckpt.toml, or name one with --layout"
        raise UsageError("there is no layout of your own to check", hint)
    near = "{}: fits up to {!r}, then {!r} is expected and {!r} is there"
    entries: list[dict[str, object]] = []
    rows: list[dict[str, object]] = []
    for about, matched, misses in _match_files(to_absolute(root), chosen, known):
        more = {"example": next(iter(matched), None), "near_misses": [m._asdict() for m in misses]}
        entries.append({**about, "matched": len(matched), **more})
        number = f"{len(matched)}, such as {matched[0]}" if matched else "0"
        texts = [near.format(m.path, m.fits, m.expected, m.found) for m in misses]
        rows.append({**about, "matched": number, "near misses": texts})
    columns = ("layout", "template", "matched", "near misses")
    asked.catalogue("layouts-check", entries, catalogue.table(rows, columns, asked.to.view))
    return 0 if all(entry["matched"] for entry in entries) else 1


_SHOWN = 5
"""The most near misses of one template that are shown."""


def _match_files(
    root: str, chosen: Sequence[Layout], known: Layouts
) -> Iterator[tuple[dict[str, str], list[str], list[Miss]]]:
    """Yield each template of the ``chosen`` layouts, the files that match it, and those that nearly do."""
    names = {layout.name for layout in chosen}
    taken = {p.path: (p.layout, p.piece) for p in discover(root, known).parts if p.layout in names}
    pieces = {(layout.name, piece.name): piece for layout in chosen for piece in layout.pieces}
    misses: dict[tuple[str, str], list[Miss]] = {key: [] for key in pieces}
    for path in _list_files(root):
        if path not in taken:
            for key, miss in _find_nearest(pieces, os.path.relpath(path, root)):
                misses[key].append(miss)
    for key, piece in pieces.items():
        matched = [os.path.relpath(path, root) for path, of in taken.items() if of == key]
        nearest = sorted(misses[key], key=lambda m: -len(m.fits))[:_SHOWN]
        yield {"layout": key[0], "template": piece.template}, matched, nearest


def _find_nearest(
    pieces: Mapping[tuple[str, str], Piece], path: str
) -> Iterator[tuple[tuple[str, str], Miss]]:
    """Yield the templates that a path follows farthest: one alone may fit no more than the directory."""
    near = {key: miss for key, piece in pieces.items() if (miss := near_miss(piece, path))}
    farthest = max((len(miss.fits) for miss in near.values()), default=0)
    yield from ((key, miss) for key, miss in near.items() if len(miss.fits) == farthest)


def _list_files(root: str) -> Iterator[str]:
    """Yield the path of each entry below ``root`` that is no directory. Raise CannotLook."""
    for at, entries in walk(root):
        if isinstance(entries, ABSENT):
            continue  # no directory, or removed since it was listed
        if isinstance(entries, OSError):
            raise CannotLook(f"cannot list {at}: {entries.strerror}") from entries
        yield from (e.path for e in entries if not is_directory(e))
