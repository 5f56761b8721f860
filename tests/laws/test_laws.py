"""Laws of the plan on small trees of which it is known what is whole, as frameworks write them: after a crash
at any call of a save, also where one of an earlier attempt is overwritten; and after damage to some files. The
newest whole save is found, nobody else's is blamed, and the plan depends on nothing that does not matter.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import described_layouts
import pytest
import small_files
import timed
from asked_plan import loads
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from memory import brief_directory
from timed import put

from ckpt_tools.api import plan, verify
from ckpt_tools.errors import CkptError
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.selection import Selection

Files = Mapping[str, bytes]
Call = tuple[str, str, bytes | str]
"""("write", path, data) or ("rename", path, to): of a removal nothing is left that a rename does not leave as well."""
BEFORE, CRASHED = (10, 20), 30
TRACKERS = {"megatron": "latest_checkpointed_iteration.txt", "ascend": "latest_checkpointed_iteration.txt"}


def in_place(files: Files) -> list[Call]:
    return [("write", path, data) for path, data in files.items()]


def each_aside(end: str) -> Callable[[Files], list[Call]]:
    """Each file under another name, and then renamed."""
    return lambda files: [
        call
        for path, data in files.items()
        for call in (("write", path + end, data), ("rename", path + end, path))
    ]


def index_last(files: Files) -> list[Call]:
    """As FileSystemWriter.finish of DCP: the index is written aside, when all else is there."""
    data = {path: made for path, made in files.items() if not path.endswith("/.metadata")}
    index = {path: made for path, made in files.items() if path not in data}
    common = {path: data.pop(path) for path in list(data) if path.endswith("/metadata.json")}
    return [*in_place(data), *each_aside(".tmp")(index), *in_place(common)]


def directory_aside(files: Files) -> list[Call]:
    """As Orbax's CheckpointManager."""
    home = next(iter(files)).partition("/")[0]
    aside = f"{home}.orbax-checkpoint-tmp"
    return [*in_place({aside + p.removeprefix(home): d for p, d in files.items()}), ("rename", aside, home)]


def core(step: int) -> Files:
    home, told = f"iter_{step:07d}", b'{"sharded_backend": "torch_dist", "sharded_backend_version": 1}'
    files = {"common.pt": small_files.megatron_common(step, 2), **small_files.dcp(step, 2, "iteration")}
    return {f"{home}/{name}": data for name, data in {**files, "metadata.json": told}.items()}


def tensorflow(step: int) -> Files:
    data, index = small_files.bundle(step // 10, step)
    return {f"ckpt-{step // 10}.data-00000-of-00001": data, f"ckpt-{step // 10}.index": index}


def of(layout: str, n: int) -> Callable[[int], Files]:
    return lambda step: described_layouts.LAYOUTS[layout](step, n)


FRAMEWORKS: dict[str, tuple[Callable[[int], Files], Callable[[Files], list[Call]]]] = {
    "megatron": (of("megatron", 2), in_place),
    "ascend": (of("ascend", 2), in_place),
    "deepspeed": (of("deepspeed", 2), in_place),
    "trainer": (of("trainer", 1), in_place),
    "dcp": (of("dcp", 2), index_last),
    "megatron-core": (core, index_last),
    "lightning": (of("lightning", 1), each_aside(".part")),
    "mindio": (of("mindio", 4), each_aside(".tmp")),
    "tensorflow": (tensorflow, each_aside(".tempstate123")),
    "orbax": (lambda s: {f"{s}/{p}": d for p, d in small_files.orbax(s).items()}, directory_aside),
}
MAY_LACK = ("config.json", "rng_state.pth", "_CHECKPOINT_METADATA", "commit_success.txt")
NOT_LOADED = "training_args.bin"


def is_whole(framework: str, step: int, there: Files) -> bool:
    """Whether all that a job needs of a save is there; of Ascend's, which each rank writes, one file of a place."""
    files = FRAMEWORKS[framework][0](step)
    known = {path: there.get(path, data if path.endswith(MAY_LACK) else b"") for path, data in files.items()}
    whole = [path for path, data in files.items() if known[path] == data or path.endswith(NOT_LOADED)]
    of_place = os.path.dirname if framework == "ascend" else str
    return {of_place(path) for path in whole} == {of_place(path) for path in files}


def crashes(calls: list[Call]) -> Iterator[list[Call]]:
    """What was done before the end: so many calls, and half of the next one if it writes."""
    for n, (kind, path, what) in enumerate(calls):
        yield calls[:n]
        if kind == "write":
            yield [*calls[:n], (kind, path, what[: len(what) // 2])]
    yield calls


def carry_out(root: Path, calls: list[Call], at: float) -> None:
    for kind, path, what in calls:
        if kind == "write":
            (root / path).unlink(missing_ok=True)
            put(root / path, what, at)
        elif (root / str(what)).is_dir():  # a save that exists is not written again
            shutil.rmtree(root / path)
        else:
            os.replace(root / path, root / str(what))


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def of_saves(root: Path, framework: str, steps: Iterable[int]) -> Iterator[str]:
    """The files of saves, and their directories."""
    for path in (root / name for step in steps for name in FRAMEWORKS[framework][0](step)):
        yield from {str(path), str(path.parent)} - {str(root)}


def blamed(root: Path) -> set[str | None]:
    """What verify has errors about; what is written here depends on the step alone."""
    seen = verify([str(root)])
    told = [(r.report.path, f) for r in seen.files for f in r.report.findings]
    told += [(f.path, f) for f in seen.findings]
    return {path for path, f in told if f.severity is Severity.ERROR and f.code != "same-content"}


@pytest.mark.share(2)
@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_save_before_is_found_until_the_new_one_is_whole(framework: str, again: bool) -> None:
    files, how = FRAMEWORKS[framework]
    ago = time.time() - 86_400
    with brief_directory() as top:
        for step in (*BEFORE, *((CRASHED,) if again else ())):
            carry_out(top / "before", how(files(step)), ago + 60 * step)
        if tracker := TRACKERS.get(framework):
            put(top / "before" / tracker, b"20", ago + 1200)
        for done in crashes(how(files(CRASHED))):
            root = Path(shutil.copytree(top / "before", top / "now"))
            carry_out(root, done, ago + 60 * CRASHED + 600)
            made, there = plan(str(root)), contents(root)
            expected = CRASHED if is_whole(framework, CRASHED, there) else BEFORE[-1]
            assert made.resume_step == expected, (len(done), made.resume_step)
            loaded, whole = [os.path.relpath(f.path, root) for f in loads(made)], files(expected)
            assert [there[name] for name in loaded] == [whole[name] for name in loaded]
            assert not blamed(root) & {*of_saves(root, framework, BEFORE)}
            shutil.rmtree(root)


def test_of_many_files_that_are_written_meanwhile_few_are_named(tmp_path: Path) -> None:
    carry_out(tmp_path, in_place(described_layouts.deepspeed(10, 3)), time.time() + 3)
    said = [f.message for f in plan(str(tmp_path)).warnings if f.code == "another-writer"]
    assert len(said) == 9 and "more files and directories were written meanwhile" in said[-1]


# ---- damage


HARM: dict[str, Callable[[bytes], bytes | None]] = {
    "cut": lambda data: data[: len(data) // 2],
    "zeroed": lambda data: bytes(len(data)),
    "empty": lambda _: b"",
    "gone": lambda _: None,
}
LARGE = ("orbax",)
"""Of which not every file is needed."""


def in_order(
    shuffle: Callable[[list[Any]], None], real: Callable[..., Any] = os.scandir
) -> Callable[..., Any]:
    """``os.scandir`` in an order of its own."""

    def scandir(path: object = ".") -> Any:
        with real(path) as it:
            entries = list(it)
        shuffle(entries)
        return nullcontext(entries)

    return scandir


def told(root: Path, order: str) -> tuple[object, ...]:
    """What a job does."""
    try:
        made = plan(str(root), Selection(order=order))
    except CkptError as e:
        return e.exit_code, None, (), ""
    files = sorted({os.path.relpath(f.path, root) for f in loads(made)})
    return 0, made.resume_step, tuple(files), made.fingerprint


@pytest.mark.share(2)
@pytest.mark.parametrize("framework", sorted(FRAMEWORKS.keys() - {*LARGE}))
@examples(int(os.environ.get("LAW_EXAMPLES", "25")))
@given(data=st.data())
def test_the_newest_whole_save_is_chosen_whatever_happened_to_others(
    framework: str, data: st.DataObject
) -> None:
    files, _ = FRAMEWORKS[framework]
    steps = [10 * n for n in range(1, data.draw(st.integers(2, 4)) + 1)]
    written = data.draw(st.permutations(steps), label="in the order of time")
    order = data.draw(st.sampled_from(["mtime", "step"]))
    lacks = data.draw(st.sampled_from(steps), label="what may lack files")
    shuffle = random.Random(data.draw(st.integers(0, 9))).shuffle
    harmed = set[int]()
    with brief_directory() as top:
        root = top / "here"
        for n, step in enumerate(written):
            carry_out(root, in_place(files(step)), timed.DAY + 600 * n)
        for _ in range(data.draw(st.integers(0, 3), label="harms")):
            step = data.draw(st.sampled_from(steps))
            name = data.draw(st.sampled_from(sorted(files(step))))
            how = data.draw(st.sampled_from(sorted(HARM.keys() - ({"gone"} if step != lacks else set()))))
            left = HARM[how](files(step)[name])
            harmed.add(step)
            (root / name).unlink(missing_ok=True)
            if left is not None:
                put(root / name, left, timed.DAY + 600 * written.index(step))
        there, before = contents(root), {str(p): p.lstat().st_mtime_ns for p in root.rglob("*")}
        ranked = written[::-1] if order == "mtime" else steps[::-1]
        whole = [step for step in ranked if is_whole(framework, step, there)]
        answer = told(root, order)
        assert answer[1] == (whole[0] if whole else None), (answer, whole)
        assert answer[0] in ((0,) if whole else (2, 3, 4))
        assert all(there[name] == files(whole[0]).get(name) for name in answer[2])
        assert not blamed(root) & {*of_saves(root, framework, {*steps} - harmed)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "scandir", in_order(shuffle))
            assert told(root, order) == answer
        assert contents(root) == there and {str(p): p.lstat().st_mtime_ns for p in root.rglob("*")} == before
        other = Path(shutil.copytree(root, top / "elsewhere/there"))
        assert told(other, order)[:3] == answer[:3]
        for step in ranked[ranked.index(whole[0]) + 1 :] if whole else ():
            for name in files(step):
                (other / name).unlink(missing_ok=True)
            assert told(other, order)[:3] == answer[:3], "an older one matters"
