"""Models rather than states of training: sharded safetensors and files of torch, GGUF, ONNX, SavedModels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ckpt_tools.layouts.common.counters import as_int
from ckpt_tools.layouts.common.layout import Flaws, Found, Rows, Saves
from ckpt_tools.layouts.common.lost_files import find_lost_shards, loss, weights_of_a_trainer
from ckpt_tools.layouts.declared import declare
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Resume
from ckpt_tools.model.ranges import gaps, words
from ckpt_tools.model.report import Report


def _check_sets(parts: Rows) -> Found:
    """Yield shards that contradict each other's counts, and an index written long after its shards."""
    homes = defaultdict[str, list[Part]](list)
    for part, _ in parts:
        homes[part.home].append(part)
    for files in homes.values():
        shards = [(p, dict(p.coords)) for p in files if p.role == "model"]
        index = next((p for p in files if p.role == "index"), None)
        for p, at in shards:
            if not 1 <= at["shard"] <= at["of"]:
                yield p.path, Flaw("extra-file", f"it is shard {at['shard']} of {at['of']}")
        yield from _find_mixed_sets([(p, at["of"]) for p, at in shards], index)
        if index and shards and index.mtime_ns > max(p.mtime_ns for p, _ in shards) + 3600 * 10**9:
            text = "it was written more than an hour after the newest of its shards"
            yield index.path, Flaw("newer-index", text, severity=Severity.NOTE)


def _find_mixed_sets(shards: Sequence[tuple[Part, int]], index: Part | None) -> Found:
    """Yield shards, given with the sizes of their sets, that lie beside shards of a set of another size."""
    counts = Counter(size for _, size in shards)
    if len(counts) > 1 and index is None:
        sizes = " and ".join(str(n) for n in sorted(counts))
        text = f"shards of sets of {sizes} lie beside each other, and no index says which belong together"
        yield shards[0][0].path, loss(text)
    elif len(counts) > 1:
        for p, size in shards:
            if counts[size] < size:
                text = f"it is of a set of {size} that is not all there, beside a whole one"
                yield p.path, Flaw("extra-file", text)


SHARDED_SAFETENSORS = declare("models", "sharded-safetensors", check=_check_sets, lost=weights_of_a_trainer)


def _find_lost_shards(c: Checkpoint, beside: Saves) -> Flaws:
    """Yield shards that the saves beside it have; of a lone save, as warnings, what its own names tell."""
    yield from find_lost_shards(c, beside)
    coords = [dict(p.coords) for p in c.parts]
    highest = max((at["of"] for at in coords), default=0)
    if gone := gaps((at["shard"] - 1 for at in coords), highest) if not beside else ():
        numbers = words(tuple((first + 1, last + 1) for first, last in gone))
        text = f"its files are numbered up to {highest}, and no rank has any of number {numbers}"
        yield loss(text, c.path, sure=False)
    if not beside and len({at["node"] for at in coords}) == 1:
        text = "it was saved as by several ranks, of which only one has files, and nothing lists the others'"
        yield loss(text, c.path, sure=False)


DCP_HF = declare("models", "dcp-hf", lost=_find_lost_shards)


def _check_gguf(parts: Rows) -> Found:
    """Yield splits of GGUF whose number or count differs from their name, and sets that are not whole."""
    sets = defaultdict[tuple[str, int], list[tuple[Part, Report]]](list)
    for part, report in parts:
        if part.piece == "split":
            at = dict(part.coords)
            sets[part.base, at["of"]].append((part, report))
            number, count = (as_int(report.metadata.get(f"split.{key}")) for key in ("no", "count"))
            if number is not None and count is not None and (number + 1, count) != (at["shard"], at["of"]):
                text = f"it was written as split {number + 1} of {count}"
                yield part.path, Flaw("rank-mismatch", text)
    for (_, size), splits in sets.items():
        yield from _check_splits(splits, size)


def _check_splits(splits: Rows, size: int) -> Found:
    """Yield a set with splits missing, or splits of two models: each says how many tensors all hold."""
    numbers = [dict(part.coords)["shard"] for part, _ in splits]
    expected = {as_int(report.metadata.get("split.tensors.count")) for _, report in splits}
    present = sum(report.tensors for _, report in splits)
    if missing := gaps((0, *numbers), size + 1):
        text = f"of its {size:,} splits these are not there: {words(missing)}"
        yield splits[0][0].path, Flaw("missing-rank", text)
    elif None not in expected and expected != {present}:
        counts = " and ".join(str(n) for n in sorted(n for n in expected if n is not None))
        text = f"the {len(splits)} splits hold {present} tensors, and should hold {counts}"
        yield splits[0][0].path, Flaw("missing-tensor", f"{text}: not of one model")


GGUF = declare(
    "models",
    "gguf",
    resume=lambda c, path: Resume(path or min(p.path for p in c.parts)),  # llama.cpp asks for the first split
    check=_check_gguf,
)
ONNX = declare("models", "onnx")
SAVED_MODEL = declare("models", "saved-model")
