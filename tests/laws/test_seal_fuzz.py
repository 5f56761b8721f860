"""A sound seal with something in it exchanged, and its own digest made anew, beside a file that was changed since:
whatever it says then, nothing breaks, and the file is never good by its word.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mutated import places
from places import FORMAT_FILES

from ckpt_tools import guard
from ckpt_tools.api import plan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.formats.seals import document
from ckpt_tools.formats.seals.document import NAME
from ckpt_tools.model.finding import Verdict

NAMES = ("", ".", "..", "../x", "/etc/passwd", "a/../b", "./model.safetensors", "a\0b", "\ud800", "n" * 5000)
ALIKE = ("MODEL.safetensors", "mode\u0301l.safetensors", "mod\u00e9l.safetensors", "model.safetensors/")
NUMBERS = (-1, 0, 1, 2**31, 2**63 - 1, 2**63, 1 << 200, 10**4000, 1.5, float("nan"), float("inf"), True)
OTHERS = (None, [], {}, [[]], {"a": {"b": [1]}}, "0" * 32, "f" * 31, "F" * 32, "\u0660" * 32, "0" * 100_000)
VALUES = (*NAMES, *ALIKE, *NUMBERS, *OTHERS)


def changed(seal: dict[str, Any], chance: random.Random) -> bytes:
    """The text of a seal after one to three changes, closed as every seal is."""
    made = copy.deepcopy(seal)
    for _ in range(chance.randint(1, 3)):
        *above, last = chance.choice([*places(made)][1:])
        holder = made
        for name in above:
            holder = holder[name]
        how = chance.randrange(6)
        if how == 0:
            del holder[last]
        elif how == 1 and isinstance(holder, list):
            holder.insert(0, copy.deepcopy(holder[last]))
        elif how == 2 and isinstance(holder, dict):
            holder[chance.choice(["x", "tensors", "path", "size"])] = holder[last]
        else:
            holder[last] = chance.choice(VALUES)
        if not isinstance(made, dict) or not made:
            break
    return closed(made, chance)


def closed(made: dict[str, Any], chance: random.Random) -> bytes:
    """As one line, or with a line for each file; now and then with a name twice, or cut."""
    files = made.pop("files", None)
    head = json.dumps(made, separators=(",", ":"))[:-1] + ("," if made else "")
    if isinstance(files, list) and chance.randrange(2):
        rows = ",\n".join(json.dumps(f, separators=(",", ":")) for f in files)
        text = f'{head}"files":[\n{rows}\n],\n'
    else:
        text = f'{head}"files":{json.dumps(files)},\n'
    if not chance.randrange(8):
        text = text.replace('"size":', '"size":0,"size":', 1)
    if not chance.randrange(16):
        text = text[: chance.randrange(len(text))]
    return document.closed(text.encode())


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A directory in which only the seal says that a file is not the one that was sealed; and the seal."""
    home = tmp_path / "model"
    home.mkdir()
    path = home / "model.safetensors"
    shutil.copyfile(next(iter(sorted(FORMAT_FILES.glob("safetensors/good/*.safetensors")))), path)
    guard.seal(home, settle=0, again=True)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (seal,) = home.glob(f"*{NAME}")
    read = json.loads(seal.read_text())
    read.pop("self")
    return seal, read


COUNT = 150
GROWN = 200 << 10
"""KiB of memory that this may take beyond what the process had."""


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, 40))])
def test_no_changed_seal_makes_a_changed_file_good(seed: int, sealed: tuple[Path, dict[str, Any]]) -> None:
    path, seal = sealed
    model = str(path.parent / "model.safetensors")
    said = {f.report.path: f.report.verdict for f in verify(path.parent, settle=0).files}
    assert said[model] is Verdict.BROKEN
    chance, before = random.Random(seed), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(COUNT):
        path.write_bytes(text := changed(seal, chance))
        found = verify(path.parent, settle=0)
        (report,) = (f.report for f in found.files if f.report.path == model)
        assert report.verdict is not Verdict.OK or not report.coverage, text[:2000]
        with suppress(CkptError):
            plan(path.parent)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWN
