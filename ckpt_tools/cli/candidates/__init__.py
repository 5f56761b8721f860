"""What a shell offers for the word at the cursor. Imports next to nothing: it runs at every press of Tab, so
the commands themselves are not imported; words.txt, which docs/make.py writes, has their words.

The scripts beside this file (``ckpt completion SHELL`` prints them) start ``ckpt`` with ``_CKPT_COMPLETE``
set to the name of the shell, and read from stdout what to offer: in the first line ``files``,
``directories``, ``command N`` (the words from the N-th on are another command) or ``words``, in each further
line a word, a tab and what it means.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckpt_tools.cli.candidates.live import Names

VARIABLE = "_CKPT_COMPLETE"
SHELLS = {"bash": "ckpt.bash", "zsh": "_ckpt", "fish": "ckpt.fish"}
"""The script of each, beside this file."""

_FILES = ("FILE", "PATH", "ROOT", "A", "B", "GLOB")
_TWO_WORDS = (("hook", "install"),)


def script(shell: str) -> str:
    """What makes ``shell`` complete the words of ckpt."""
    return _read(SHELLS[shell])


def answer(environ: Mapping[str, str], arguments: list[str]) -> str | None:
    """What to offer to the shell that asks; None when none does that this is for."""
    shell = environ.get(VARIABLE)
    if shell not in SHELLS:
        return None
    if shell == "bash":
        arguments = _split(environ.get("_CKPT_LINE", ""))[1:]
    line = Line(arguments or [""], _read("words.txt"), environ)
    rows, kind = line.offered(), line.kind
    if kind != "words":
        return f"{kind}\n"
    from ckpt_tools.cli.candidates.quoting import quoted

    begun = _begun(line.current, environ) if shell == "bash" else 0
    words = ((quoted(word[begun:], shell), about) for word, about in rows)
    return "".join(["words\n", *(f"{word}\t{about}\n" for word, about in words if word)])


def _begun(current: str, environ: Mapping[str, str]) -> int:
    """How much of the word at the cursor bash leaves as it is: it takes "=" and ":" for ends of words."""
    replaced = environ.get("_CKPT_WORD", current)
    return len(current) - len(replaced) if current.endswith(replaced) else 0


def _sorted_out(words: Sequence[str], takes: Mapping[str, str]) -> tuple[list[str], str]:
    """The arguments that are no flags or values of flags, and the value that the last flag waits for;
    ``takes`` says what each flag takes, "" where it is nothing.
    """
    roots, pending = list[str](), ""
    for word in words:
        if pending:
            pending = ""
        elif word.startswith("-"):
            pending = takes.get(word, "")
        else:
            roots.append(word)
    return roots, pending


def _end_of_flags(words: Sequence[str], takes: Mapping[str, str]) -> int | None:
    """Where ``--`` stands that is no flag's value."""
    at = (i for i, word in enumerate(words) if word == "--" and not _sorted_out(words[:i], takes)[1])
    return next(at, None)


class Line:
    """The words after ``ckpt`` up to the cursor; the last one is not whole. ``kind`` says what is offered
    beside the words.
    """

    def __init__(self, arguments: list[str], table: str, environ: Mapping[str, str]) -> None:
        *self.before, self.current = arguments
        self.environ = environ
        self.kind = "words"
        self._tables = {block.partition("\n")[0]: block for block in table.strip("\n").split("\n\n")}

    def offered(self) -> list[tuple[str, str]]:
        """The words that fit, each with what it means."""
        at = next((i for i, word in enumerate(self.before) if not word.startswith("-")), None)
        if at is None:
            return self._fitting(self._first_words())
        name, rest = self.before[at], self.before[at + 1 :]
        for first, second in _TWO_WORDS:
            if name == first and rest[:1] == [second]:
                return self._of_command(f"{first} {second}", at + 2)
            if name == first and not rest and self.current and second.startswith(self.current):
                return [(second, "")]
        return self._of_command(name, at + 1) if name in self._tables else []

    def _first_words(self) -> Iterable[tuple[str, str]]:
        """What a line may begin with: commands, flags of ``ckpt`` itself, places in a store."""
        if "://" in self.current:
            return self._urls()
        table = "ckpt" if self.current.startswith("-") else "commands"
        return (row[::2] for row in self._rows(table))

    def _of_command(self, name: str, start: int) -> list[tuple[str, str]]:
        rows = self._rows(name)
        takes = {flag: value for flag, value, _ in rows if flag.startswith("-")}
        places = [value for flag, value, _ in rows if not flag.startswith("-")]
        words = self.before[start:]
        if name == "run" and (end := _end_of_flags(words, takes)) is not None:
            self.kind = f"command {start + end + 1}"
            return []
        roots, pending = _sorted_out(words, takes)
        flag, equals, _ = self.current.partition("=")
        if pending:
            return self._fitting(self._values(pending, roots))
        if equals and takes.get(flag):
            return self._fitting(
                (f"{flag}={word}", about) for word, about in self._values(takes[flag], roots)
            )
        if self.current.startswith("-"):
            return self._fitting((flag, about) for flag, _, about in rows if flag.startswith("--"))
        place = places[min(len(roots), len(places) - 1)] if places else ""
        return self._fitting(self._values(place, []))

    def _values(self, metavar: str, roots: list[str]) -> Iterable[tuple[str, str]]:
        """What a flag or an argument takes whose value is called ``metavar``; ``kind`` when it is a file."""
        if metavar in (*_FILES, "DIR") and "://" in self.current:
            return self._urls()
        if metavar in _FILES:
            self.kind = "files"
        elif metavar == "DIR":
            self.kind = "directories"
        elif metavar in ("RUN", "STEP"):
            found = self._found(roots[0] if roots else self.environ.get("CKPT_ROOT") or os.curdir)
            return [(name, "") for name in (found.runs if metavar == "RUN" else found.steps)]
        else:
            return self._choices(metavar)
        return []

    def _choices(self, metavar: str) -> Iterable[tuple[str, str]]:
        """What a value is one of."""
        if f"={metavar}" in self._tables:
            known = [row[::2] for row in self._rows(f"={metavar}")]
            return [*known, *self._own_layouts()] if metavar == "LAYOUT" else known
        is_choice = bool(metavar) and metavar == metavar.lower()
        return [(choice, "") for choice in metavar.split("|")] if is_choice else []

    def _found(self, root: str) -> Names:
        """The runs and steps below ROOT."""
        from ckpt_tools.cli.candidates import live

        if "://" in root:
            from ckpt_tools.cli.candidates import far

            return far.names(root, self._store_options())
        return live.names(os.path.expandvars(os.path.expanduser(root)))

    def _urls(self) -> list[tuple[str, str]]:
        """What lies beside the URL at the cursor."""
        from ckpt_tools.cli.candidates.far import urls

        begun = self.current.partition("=")[2] if self.current.startswith("-") else self.current
        return [(url, "") for url in urls(begun, self._store_options())]

    def _store_options(self) -> list[str]:
        """What the words so far say of how stores are opened."""
        pairs = zip(self.before, self.before[1:])  # noqa: B905 - one less
        own = [word.partition("=")[2] for word in self.before if word.startswith("--store-option=")]
        return [*own, *(value for flag, value in pairs if flag == "--store-option")]

    def _own_layouts(self) -> list[tuple[str, str]]:
        from ckpt_tools.cli.candidates.own import layouts

        return [(name, "") for name in layouts(self.environ)]

    def _rows(self, table: str) -> list[tuple[str, str, str]]:
        lines = self._tables[table].split("\n")[1:]
        return [(name, value, about) for name, value, about in (line.split("\t") for line in lines)]

    def _fitting(self, rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        return [row for row in rows if row[0].startswith(self.current)]


def _split(line: str) -> list[str]:
    """The words of a line of bash that ends at the cursor, without their quotes; the last one may be open."""
    import shlex

    for close in ("", "'", '"'):
        try:
            *before, last = shlex.split(f"{line}.{close}")
        except ValueError:  # a quote is open
            continue
        return [*before, last[:-1]]
    return [""]


def _read(name: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def write(text: str) -> None:
    """Write an answer. Who has gone away wants none."""
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.flush()
    except (OSError, AttributeError):
        return
