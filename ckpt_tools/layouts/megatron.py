"""Trainers that cut a model along the axes of a grid: Megatron-LM, its core, and those that have them inside
(NeMo 2, NeMo-RL, ms-swift, verl, SkyRL); ColossalAI's applications, nanotron and fairseq2.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

from msgspec.structs import replace

from ckpt_tools.layouts import dcp
from ckpt_tools.layouts.common.counters import as_int, check_steps, find_misnamed, read_by_last_word
from ckpt_tools.layouts.common.layout import (
    Flaws,
    Found,
    Metadata,
    Rows,
    Saves,
    Tracker,
    find_all,
    read_number,
)
from ckpt_tools.layouts.common.lost_files import (
    check_index,
    compare_names,
    find_lost_arrays,
    list_lost,
    list_paths,
    loss,
)
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.ranges import ranges, words


def read_tracker(data: bytes) -> int | str | None:
    """Return the iteration or "release" in a tracker, stripped as Megatron-LM does; None for other text."""
    return "release" if data.strip() == b"release" else read_number(data)


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """Return Megatron-LM's arguments: the directory above the iterations, and the iteration."""
    base = checkpoint.parts[0].base
    if checkpoint.kind is Kind.RELEASE:
        return Resume(base, ("--load", base))  # Megatron finds release/ through its tracker
    return Resume(base, ("--load", base, "--ckpt-step", str(checkpoint.step)))


TRACKER = Tracker(file="latest_checkpointed_iteration.txt", read=read_tracker)
MEGATRON = declare("megatron", "megatron", resume=_resume, tracker=TRACKER)


def _read_iteration(metadata: Metadata) -> int | None:
    """Return the iteration that the job saved, not that of its arguments or of its optimizer."""
    entries = {k: v for k, v in metadata.items() if "args." not in k and "optim" not in k}
    return read_by_last_word(entries, ("iteration",))


def check_metadata(parts: Rows) -> Found:
    """Yield ``torch_dist`` saves (only these keep a ``common_state``) without metadata.json."""
    done = {p.folder.directory for p, _ in parts if p.name == "metadata.json"}
    for part, report in parts:
        directory = part.folder.directory
        if directory not in done and any(key.startswith("common_state/") for key in report.metadata):
            done.add(directory)
            text = "metadata.json, which is written last, is not there: its loader asks for it"
            yield part.path, loss(text)


_check_files = find_all(dcp.check_common, check_metadata)
_check_core = find_all(_check_files, partial(check_steps, read=_read_iteration, what="iteration"))


MEGATRON_CORE = declare(
    "megatron",
    "megatron-core",
    resume=_resume,
    check=_check_core,
    lost=find_lost_arrays,
    tracker=replace(TRACKER, state_copy="latest_train_state.pt"),
)
NEMO = declare(
    "megatron",
    "nemo",
    check=find_all(
        dcp.check_common,
        # the name counts from 0, ``global_step`` in common.pt from 1
        partial(find_misnamed, named_by=lambda p: (p.step, None, None)),
    ),
)


NEMO_RL = declare("megatron", "nemo-rl", check=_check_files)


def _find_lost_of_swift(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield missing indexes, but not if the model alone was saved: an export and files of all ranks."""
    roles = {p.role for p in c.parts}
    is_model_alone = "export" in roles and roles <= {"export", "common", "tracker"}
    if c.kind is not Kind.PERIODIC or is_model_alone:
        return
    for role, name in (("index", ".metadata"), ("metadata", "metadata.json")):
        if role not in roles and (role == "index" or "common" in roles):  # Megatron-FSDP saves neither
            yield loss(f"there is no {name}: it was never finished, or lost it", c.path)
    yield from find_lost_arrays(c, beside)


def _check_swift(parts: Rows) -> Found:
    """Yield also trackers that do not name the directory beside them: ms-swift asks for no other one."""
    yield from _check_core(parts)
    for p, r in parts:
        value = r.metadata.get("value")
        is_good = p.role != "tracker" or as_int(value) is not None or value == "release"
        if not is_good and r.verdict is not Verdict.BROKEN:
            text = "it holds neither a number nor 'release': nothing is loaded by it"
            yield p.path, Flaw("bad-tracker", text, severity=Severity.ERROR)


MS_SWIFT = declare("megatron", "ms-swift", check=_check_swift, lost=_find_lost_of_swift)


def _find_lost_kinds(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield kinds of files that a worker of a lone save has none of, as a warning: it may save none."""
    by_directory = defaultdict[str, set[str]](set)
    for name in list_paths(c) if not beside else ():
        directory, _, file = name.rpartition("/")
        kind, separator, _ = file.partition("_world_size_")
        if separator:
            by_directory[directory].add(kind)
    for directory, kinds in sorted(by_directory.items()):
        if gone := [kind for kind in ("model", "optim", "extra_state") if kind not in kinds]:
            text = f"{directory or 'it'} has no {' and no '.join(gone)} file, and no other save can tell"
            yield loss(text, c.path, sure=False)


def _find_lost_of_verl(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield files that Megatron-core writes last into its directories, and those that other saves have."""
    files = list_paths(c)
    for home in sorted({name.rpartition("/")[0] for name in files if "dist_ckpt/" in name}):
        last = ".metadata", "metadata.json"
        for name in last if f"{home}/common.pt" in files else last[:1]:
            if f"{home}/{name}" not in files:
                text = f"there is no {home}/{name}, which is written last: without it nothing there is loaded"
                yield loss(text, c.path)
    yield from check_index(c, beside)
    yield from _find_lost_kinds(c, beside)

    def list_needed(o: Checkpoint) -> frozenset[str]:
        """Return the places of ranks in the data, and the indexes of states."""
        names = list_paths(o)
        return frozenset(n for n in names if n.startswith("data_") or n.endswith("dist_ckpt/.metadata"))

    yield from compare_names(c, beside, list_needed)


VERL = declare(
    "verl",
    "verl",
    check=_check_files,
    lost=_find_lost_of_verl,
    tracker=replace(TRACKER, always=False),
)


def _find_lost_of_skyrl(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield files that Megatron-core needs to read others, written last, after ``trainer_state.pt``."""
    yield from _find_lost_kinds(c, beside)
    files = list_paths(c)
    data = [name for name in files if name.endswith(("distcp", "/common.pt"))]
    for directory in sorted({name.rpartition("/")[0] for name in data}):
        for name in (".metadata", "metadata.json"):
            if f"{directory}/{name}" not in files:
                yield loss(f"there is no {directory}/{name}: it was never finished, or lost it", c.path)


SKYRL = declare(
    "verl",
    "skyrl",
    check=dcp.check_common,
    lost=_find_lost_of_skyrl,
)


def _resume_colossalai(checkpoint: Checkpoint, _path: str | None) -> Resume:
    """Return the argument with the directory: ColossalAI's examples call it otherwise than its trainers."""
    example = any(p.piece.endswith(("_sora", "_example")) for p in checkpoint.parts)
    return Resume(checkpoint.path, ("--load" if example else "--load_checkpoint", checkpoint.path))


COLOSSALAI = declare("grids", "colossalai", resume=_resume_colossalai, lost=check_index)
_RANKS = re.compile(r"(tp|pp|dp|exp)(?:-rank)?-(\d+)-of-(\d+)")


def _check_nanotron(parts: Rows) -> Found:
    """Yield ranks without a file of the model."""
    for path, text in _find_lost_ranks([part for part, _ in parts if part.role != "random"]):
        yield path, loss(text)


def _find_lost_of_nanotron(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield tensors of other saves, gaps in the numbers of blocks, and ranks without random numbers."""

    def list_tensors(o: Checkpoint) -> frozenset[str]:
        """Return the names of the model's tensors, whichever ranks hold them."""
        names = (p.path.removeprefix(f"{o.path}/model/") for p in o.parts if p.role == "model")
        return frozenset(_RANKS.sub("", name).removesuffix(".safetensors").rstrip("_") for name in names)

    for tensor in list_lost(c, beside, list_tensors):
        yield loss(f"there is no tensor {tensor!r}, which the run's other checkpoints have", c.path)
    found = (re.search(r"(?:^|/)decoder/([0-9]{1,5})/", name) for name in list_tensors(c))
    blocks = {int(m[1]) for m in found if m}
    if gone := set(range(max(blocks, default=0))) - blocks:
        missing = words(ranges(sorted(gone)))
        text = f"there is a block of number {max(blocks)}, and no tensor of block {missing}"
        yield loss(text, c.path)
    for path, text in _find_lost_ranks([part for part in c.parts if part.role == "random"]):
        yield loss(f"{text}: of random numbers, which nanotron does not load again", path, sure=False)


def _find_lost_ranks(parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    """Yield (path, text) for each set of files that lacks ranks, as "-of-N" in the others' names tells."""
    sets = defaultdict[str, list[Part]](list)
    for part in parts:
        sets[_RANKS.sub(r"\1\3", part.path)].append(part)
    for files in sets.values():
        axes = _RANKS.findall(files[0].name)
        # a tensor lies in one pipeline stage only
        wanted = prod(int(n) for axis, _, n in axes if axis != "pp" or files[0].role != "model")
        if (gone := wanted - len(files)) > 0:
            text = f"{gone} of the {wanted} files of this name are not there, one for each rank"
            yield min(p.path for p in files), text


NANOTRON = declare("grids", "nanotron", check=_check_nanotron, lost=_find_lost_of_nanotron)


def _find_lost_of_fairseq2(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield files that the save's other files imply; if none, files that all saves ``beside`` it have."""
    gone = sorted(_list_implied(c) - list_paths(c))
    for name in gone:
        yield loss(f"there is no {name}, which the other files of the save belong to", c.path)
    if not gone:
        yield from compare_names(c, beside, list_paths)


def _list_implied(c: Checkpoint) -> set[str]:
    """Return the files that others imply: a place of the model has an optimizer's file, and a rank."""
    files = list_paths(c)
    if not any(name.startswith("trainer/") for name in files):  # an export
        return set()
    paths = {name.partition("/")[2] for name in files if name.startswith(("model/", "optimizer/"))}
    shards = len({path.rpartition("/")[2] for path in paths})
    implied = {f"{role}/{path}" for role in ("model", "optimizer") for path in paths}
    for role, name, least in (("trainer", "rank", len(paths)), ("data_reader", "dp", shards)):
        ranks = [n for p in c.parts if p.role == role for axis, n in p.coords if axis == "shard"]
        if ranks:
            implied |= {f"{role}/{name}_{rank:02d}.pt" for rank in range(max(least, *ranks))}
    return implied


FAIRSEQ2 = declare("grids", "fairseq2", lost=_find_lost_of_fairseq2)
