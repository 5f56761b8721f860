"""Packages that add something to ckpt, as pip leaves them: a module, and its metadata beside it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

from timed import put

SAVED = 1_735_689_600

FORMAT = """
from ckpt_tools import Level
from ckpt_tools.formats import Damage, Format

def check(source, anatomy):
    data = source.read(0, source.size)
    if len(data) < 8:
        raise Damage("truncated", "it is short")
    anatomy.metadata["step"] = data[4]
    yield from ()

FORMAT = Format("own", (".own",), lambda head: head.startswith(b"OWN1"), {Level.STRUCTURE: check}, "-", (), "-")
"""
LAYOUT = """
from ckpt_tools import Resume
from ckpt_tools.layouts import Layout, Piece
from ckpt_tools.layouts.common.layout import Tracker
from ckpt_tools.layouts.common.piece import OWN

CKPT_API = 2

LAYOUT = Layout("owned", "Own", (Piece("state", "model", "save-{step}/rank-{rank}.own", ("own",), readers=OWN),),
                lambda checkpoint, path: Resume(checkpoint.path), "-", ())
"""
BOTH = {"formats": {"own": "own_parts:FORMAT"}, "layouts": {"owned": "own_parts:LAYOUT"}}
USUAL = {"name": "own-parts", "version": "1.0", "module": "own_parts"}


def install(
    place: Path,
    entry_points: Mapping[str, Mapping[str, str]] = BOTH,
    source: str = FORMAT + LAYOUT,
    **named: str,
) -> Path:
    """Put a package of this ``name``, ``version`` and ``module`` into a place of Python's path, and return that."""
    name, version, module = (named.get(key, usual) for key, usual in USUAL.items())
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{module}.py").write_text(source)
    metadata = place / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText.\n")
    lines = ["[console_scripts]", "own = own:main", ""]
    for group, rows in entry_points.items():
        lines += [f"[ckpt_tools.{group}]", *(f"{key} = {value}" for key, value in rows.items()), ""]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return place


def saved(root: Path, steps: tuple[int, ...] = (10, 20)) -> Path:
    """Saves of two ranks each, in files that only the plug-in knows."""
    for step in steps:
        for rank in (0, 1):
            data = b"OWN1" + bytes([step]) + f"weights {step} {rank}".encode()
            put(root / f"save-{step}/rank-{rank}.own", data, SAVED + 60 * step)
    return root


def acme(root: Path, steps: tuple[int, ...] = (10, 20)) -> Path:
    """The same for the package in examples/plugin."""
    for step in steps:
        home, at = root / f"save-{step}", SAVED + 60 * step
        for rank in (0, 1):
            body = f"weights {step} {rank}".encode()
            head = b"ACME" + step.to_bytes(8, "little") + len(body).to_bytes(8, "little")
            crc = zlib.crc32(body).to_bytes(4, "little")
            put(home / f"part-{rank}-of-2.acme", head + body + crc, at)
        put(home / "DONE", b"", at)
    return root
