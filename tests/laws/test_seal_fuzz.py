"""A sound seal with something in it exchanged, and its own digest made anew, beside a file that was changed since:
whatever it says then, nothing breaks, and the file is never good by its word.
"""

from __future__ import annotations

import json
import resource
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from mutated import INSTEAD, mutants
from places import FORMAT_FILES
from run_helpers import flip

from ckpt_tools import guard
from ckpt_tools.api import plan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.formats.seals import document
from ckpt_tools.formats.seals.document import NAME
from ckpt_tools.model.finding import Verdict

NAMES = (".", "../x", "a/../b", "./model.safetensors", "MODEL.safetensors", "mode\u0301l.safetensors", "model.safetensors/", "n" * 5000)  # fmt: skip
DIGESTS = ("0" * 32, "f" * 31, "F" * 32, "\u0660" * 32, "0" * 100_000)
NUMBERS = (0, 2**63 - 1, 1.5, float("nan"), float("inf"))
GROWN = 200 << 10
"""KiB of memory that this may take beyond what the process had."""


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_no_changed_seal_makes_a_changed_file_good(every: int, tmp_path: Path) -> None:
    model = tmp_path / "model/model.safetensors"
    model.parent.mkdir()
    shutil.copyfile(min(FORMAT_FILES.glob("safetensors/good/*.safetensors")), model)
    guard.seal(model.parent, settle=0, again=True)
    flip(model)
    (path,) = model.parent.glob(f"*{NAME}")

    def said() -> tuple[Verdict, float]:
        files = {f.report.path: f.report for f in verify(model.parent, settle=0).files}
        return files[str(model)].verdict, files[str(model)].coverage

    assert said()[0] is Verdict.BROKEN
    seal, before = json.loads(path.read_text()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del seal["self"]
    for n, (what, made) in enumerate(mutants(seal, (*INSTEAD, *NAMES, *DIGESTS, *NUMBERS))):
        if n % every == 0:
            text = json.dumps(made)
            text = text if n % 3 else text.replace('"size":', '"size": 0, "size":', 1)  # a name twice
            path.write_bytes(document.closed(text.encode()[:-1] + b",\n"))
            verdict, coverage = said()
            assert verdict is not Verdict.OK or not coverage, what
            with suppress(CkptError):
                plan(model.parent)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWN
