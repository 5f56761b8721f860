"""What fuzz.py feeds besides formats: everything else that ckpt reads and somebody else may have written.
Each raises whatever is wrong with us.

Packages are imported inside the functions: fuzz.py instruments them when they are.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import _seal_target

ROOT = Path(__file__).parent.parent
NAMES = 64
"""Files of a made-up tree, at most."""
DEEP = 6

Target = Callable[[bytes], None]


class Other(NamedTuple):
    """``seeds`` are what is mutated, ``make`` gives the function that takes an input."""

    seeds: Callable[[], list[bytes]]
    make: Callable[[], Target]


def scratch() -> Path:
    """A directory of this process alone, gone when it ends."""
    place = Path(tempfile.mkdtemp(prefix="ckpt-fuzz-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


# ---- the decision of a job


def decision_body() -> dict[str, Any]:
    """A decision as ``ckpt run`` writes one; its files are those of a fixture."""
    root = str(ROOT / "fixtures" / "demo")
    path = f"{root}/iter_0000010/mp_rank_00/model_optim_rng_0.pt"
    file = {
        "role": "model",
        "path": path,
        "size": 1,
        "mtime_ns": 1,
        "level": "content",
        "coverage": 0.9,
        "source_rank": 0,
        "substituted": False,
    }
    return {
        "schema": "ckpt-tools/plan/v1", "tool_version": "0", "root": root, "resume_step": 10, "world_size": 1,
        "checkpoint": {"step": 10, "epoch": None, "epoch_base": None, "step_in_epoch": None, "kind": "periodic", "layout": "megatron",
                       "run": ".", "generation": None, "mtime": 1.0, "path": f"{root}/iter_0000010"},
        "resume": {"path": root, "args": ["--load", root, "--ckpt-step", "10"], "env": {"CKPT_LOAD_DIR": root}},
        "ranks": [{"rank": 0, "files": [{**file, "node": None, "reason": None}]}], "shared": [], "warnings": [], "ahead": [], "rejected": [],
        "view": {"root": "/v", "checkpoint": "/v/iter_0000010", "ranks": {"0": ["/v/x"]}, "shared": []}, "fingerprint": "0" * 32,
        "decision": {"root": root, "decided_at": 1.0, "host": "h", "pid": 1, "process": "p", "agent": "a", "job": "j", "generation": 0, "nodes": 1},
    }  # fmt: skip


def decision_seeds() -> list[bytes]:
    """Decisions that found something, found nothing and failed."""
    body = decision_body()
    failed = {**body, "checkpoint": None, "error": {"message": "m", "hint": "h", "exit_code": 4}}
    bodies = (body, {**body, "checkpoint": None}, {**body, "view": None}, failed, {"decision": {}})
    return [json.dumps(b).encode() for b in bodies]


def decision() -> Target:
    from ckpt_tools import job
    from ckpt_tools.errors import CkptError
    from ckpt_tools.job.decision import read

    path = scratch() / "1.json"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        path.chmod(0o600)
        for rank in (None, 0, 7):
            with contextlib.suppress(CkptError):
                taken = job.take(read(str(path)), rank, require_rank=False)
                assert all(isinstance(p, str) for p in taken.paths)
                for name, value in taken.environment.items():
                    assert name.startswith("CKPT_"), name
                    assert "\0" not in value
                json.dumps(taken.body)

    return run


# ---- configuration


CONFIG = """
root = "/runs"
order = "step"
settle = "2m"
world-size = 8
require = "epoch_num,optimizer"
replica-groups = "0,4;1,5"
exclude = ["*.log"]
[[layout]]
name = "ours"
title = "Ours"
tracker = "latest.txt"
tracker_holds = "name"
commit = "done"
needs = ["model"]
step_keys = ["step"]
epoch_base = 1
resume_args = ["--resume", "{path}", "--at", "{step}"]
[[layout.piece]]
template = "{run}/step_{step}/rank_{rank:02d}[_{tp}]<_best>.pt"
role = "model"
formats = ["torch_zip"]
replicated_over = ["dp"]
[[layout.piece]]
template = "{run}/step_{step}/done"
role = "done"
loaded = false
"""


def config_seeds() -> list[bytes]:
    """A configuration with one of everything, and what the pages say."""
    pages = (ROOT / "docs" / "adding-a-layout.md").read_text().split("```")
    blocks = [block.removeprefix("toml\n").encode() for block in pages[1::2] if block.startswith("toml\n")]
    return [CONFIG.encode(), b'[tool.ckpt]\norder = "step"\n', *blocks]


def config() -> Target:
    from ckpt_tools.errors import CkptError
    from ckpt_tools.formats import names
    from ckpt_tools.layouts import use, user
    from ckpt_tools.settings import resolve as configuration

    place = scratch()
    flags: dict[str, object] = dict.fromkeys(v.key for v in configuration.ENV if v.parse)
    flags["root"] = "/runs"  # not here: no configuration is read from a scanned tree

    def run(data: bytes) -> None:
        (place / "ckpt.toml").write_bytes(data)
        (place / "ckpt.toml").chmod(0o600)
        try:
            found = configuration.resolve(flags, env={}, cwd=str(place))
            found.selection()
            if found.layout_tables is not None:
                with contextlib.suppress(ValueError):
                    user.load(found.layout_tables, names.order).templates().places("/runs/step_5")
        except CkptError:
            return
        finally:
            use(())

    return run


def template_seeds() -> list[bytes]:
    """Every template of every layout, each with a path below it."""
    from ckpt_tools.layouts import LAYOUTS

    return [
        f"{p.template}\nrun/iter_0000010/mp_rank_00/file_7.pt".encode()
        for layout in LAYOUTS
        for p in layout.pieces
    ]


def template() -> Target:
    from ckpt_tools.layouts import use, user

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        made, _, path = text.partition("\n")
        try:
            with contextlib.suppress(ValueError):
                theirs = user.load(
                    [
                        {
                            "name": "theirs",
                            "piece": [{"template": made, "role": "model", "formats": ["torch_zip"]}],
                        }
                    ],
                    ["torch_zip"],
                )
                directory, _, name = path.rpartition("/")
                found = theirs.templates().places(f"/{directory}")
                if told := found.read_name(name[:255]):
                    assert found[told.piece].layout.name
        finally:
            use(())

    return run


# ---- small files


def fault_seeds() -> list[bytes]:
    """What the page says a fault file is."""
    mindx = {"FaultRankIds": "[1, '2']"}
    nodes = {"version": 1, "fault_nodes": ["node-7"], "node_ranks": {"node-7": [56, 57]}}
    return [
        json.dumps(v).encode()
        for v in ([3, 5], {"version": 1, "fault_ranks": [3]}, mindx, nodes, {"FaultRankIds": ["1"]})
    ]


def fault_file() -> Target:
    from ckpt_tools.errors import CkptError
    from ckpt_tools.settings.fault_file import fault_file as parse

    path = scratch() / "faults.json"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        path.chmod(0o600)
        with contextlib.suppress(ValueError, CkptError):
            assert all(rank >= 0 for rank in parse(str(path)))

    return run


def tracker_seeds() -> list[bytes]:
    """Trackers of all fixtures, and what they say elsewhere."""
    names = ("latest*", "checkpoint", "last*", "*iteration*", "meta.json", "trainer_state.json", "iter.txt")
    paths = (p for name in names for p in ROOT.glob(f"fixtures/layouts/*/*/tree/**/{name}"))
    found = [p.read_bytes() for p in sorted(paths) if p.is_file() and p.stat().st_size < 4096]
    return [*dict.fromkeys(found), b"release", b"global_step10", b"20\n"]


def tracker() -> Target:
    from ckpt_tools.findings import CODES
    from ckpt_tools.layouts import LAYOUTS
    from ckpt_tools.layouts.mindspore import check_records
    from ckpt_tools.model.checkpoint import Checkpoint
    from ckpt_tools.model.finding import Notes
    from ckpt_tools.model.part import Kind, Part

    part = Part("/a/b-1_1.ckpt", "mindspore", "model", "model", "b", "/a")
    saved = Checkpoint("mindspore", "b", Kind.PERIODIC, (part,), "/a", 0)
    readers = [layout.tracker.read for layout in LAYOUTS if layout.tracker.read]

    def run(data: bytes) -> None:
        for read in readers:
            said = read(data[:4096])
            assert said is None or isinstance(said, (int, str))
        notes = Notes(lambda _, limit: data[:limit], lambda *_: None)
        assert all(f.code in CODES for f in check_records([saved], notes))

    return run


def strategy_seeds() -> list[bytes]:
    """Strategy files, in both of MindSpore's forms."""
    return [
        p.read_bytes()
        for p in sorted((ROOT / "fixtures/formats/mindspore_strategy").rglob("*"))
        if p.is_file()
    ]


def strategy() -> Target:
    from ckpt_tools.errors import CkptError
    from ckpt_tools.formats.mindspore.mindspore_strategy import strategy_groups

    place = scratch()

    def run(data: bytes) -> None:
        for name in ("src_strategy_0.ckpt", "src_strategy_0.json"):
            (place / name).write_bytes(data)
            with contextlib.suppress(CkptError):
                for world in (1, 8):
                    groups = strategy_groups(str(place), world)
                    assert sorted(rank for group in groups for rank in group) == list(range(world))
            (place / name).unlink()

    return run


# ---- what is kept between runs


def cache_seeds() -> list[bytes]:
    """Records as a look at fixtures leaves them."""
    from ckpt_tools.api import verify
    from ckpt_tools.cache import pack
    from ckpt_tools.model.report import Level

    files = [
        "fixtures/demo/iter_0000010",
        "fixtures/formats/safetensors/good",
        "fixtures/formats/torch_zip/bad",
    ]
    seen = [f.report for name in files for f in verify([str(ROOT / name)], level=Level.STRUCTURE).files]
    rows = [pack(report, {}) for report in seen]
    return [row for row in rows if row is not None][:40]


def cache() -> Target:
    from ckpt_tools.cache import pack, unpack
    from ckpt_tools.model.report import Report

    def run(data: bytes) -> None:
        found = unpack("/a", data)
        if found is not None:
            report, places = found
            assert isinstance(report, Report)
            assert isinstance(report.metadata, Mapping)
            for f in report.findings:
                f.message.encode("utf-8", "surrogatepass")
            pack(report, places)

    return run


# ---- what other nodes say


def name_seeds() -> list[bytes]:
    """The trees of all layouts, one path per line."""
    trees = sorted(ROOT.glob("fixtures/layouts/*/*/tree"))
    made = ["\n".join(str(p.relative_to(t)) for p in sorted(t.rglob("*")) if p.is_file()) for t in trees]
    odd = [
        "rank_0/net-1_10.ckpt\nrank_1/net-1_10.ckpt\nrank_1/net_2-1_10.ckpt",
        "step_\xff.pt\nstep_９.pt\nstep_20 (1).pt",
    ]
    return [text.encode("utf-8", "surrogateescape") for text in (*made, *odd) if text]


def names() -> Target:
    """Random trees: every name that a file system takes is found, grouped and printed, or refused with a
    reason.
    """
    from ckpt_tools.api import scan
    from ckpt_tools.errors import CkptError
    from ckpt_tools.output import json as as_json
    from ckpt_tools.output import scan as table

    place = scratch()

    def run(data: bytes) -> None:
        root = place / "t"
        root.mkdir()
        try:
            for path in paths(data):
                with contextlib.suppress(OSError):
                    full = os.path.join(os.fsencode(root), path)
                    os.makedirs(os.path.dirname(full), exist_ok=True)
                    os.close(os.open(full, os.O_WRONLY | os.O_CREAT, 0o600))
            with contextlib.suppress(CkptError):
                found = scan(str(root))
                as_json.render(found)
                assert "\x1b" not in table.render(found)
        finally:
            shutil.rmtree(root)

    return run


def paths(data: bytes) -> Iterator[bytes]:
    """Lines as relative paths that stay where they are."""
    for line in data.split(b"\n")[:NAMES]:
        parts = [
            part[:200] for part in line.replace(b"\0", b"").split(b"/") if part not in (b"", b".", b"..")
        ]
        if parts:
            yield b"/".join(parts[:DEEP])


OTHERS: Mapping[str, Other] = {
    "decision": Other(decision_seeds, decision),
    "config": Other(config_seeds, config),
    "template": Other(template_seeds, template),
    "fault_file": Other(fault_seeds, fault_file),
    "tracker": Other(tracker_seeds, tracker),
    "strategy": Other(strategy_seeds, strategy),
    "cache": Other(cache_seeds, cache),
    "names": Other(name_seeds, names),
    "sealed": Other(_seal_target.seeds, _seal_target.sealed),
}
"""Targets that are no format."""
