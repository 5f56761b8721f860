"""Orbax CheckpointManager: ``N/`` with ``_CHECKPOINT_METADATA`` and one directory per item;
``N.orbax-checkpoint-tmp`` while it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt_tools.layouts.common.layout import Layout, Piece
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import Resume

JSON = ("json_member",)
HOME = "<checkpoint_|step_|ckpt_|>{step}"
DEEPEST = 7
"""Components below an item: those of a zarr v3 chunk of four dimensions are w/c/0/0/0/0."""


def _resume(checkpoint: Checkpoint, _path: str | None) -> Resume:
    return Resume(checkpoint.path)  # CheckpointManager.restore(step), Checkpointer.restore(path)


def _pieces(home: str, mark: str, unfinished: bool = False) -> Iterator[Piece]:
    item = f"{home}/{{name}}" + ("[.orbax-checkpoint-tmp]" if unfinished else "")
    for name, role, template, formats, loaded in (
        ("metadata", "metadata", f"{home}/_CHECKPOINT_METADATA", JSON, False),
        ("commit", "commit", f"{home}/commit_success.txt", (), False),
        ("tree", "tree", f"{item}/_METADATA", ("orbax_tree",), True),
        ("manifest", "manifest", f"{item}/manifest.ocdbt", ("ocdbt",), True),
        ("item_commit", "item_commit", f"{item}/commit_success.txt", (), False),
        ("sharding", "sharding", f"{item}/_sharding", JSON, True),
        ("arrays", "array_metadata", f"{item}/array_metadatas/process_{{node}}", JSON, True),
    ):
        yield Piece(
            name + mark,
            role,
            template,
            formats,
            shared=True,
            loaded=loaded,
            unfinished=unfinished,
            companion=name in ("commit", "item_commit", "sharding", "arrays"),
            required=name not in ("manifest", "sharding", "arrays"),
        )
    for depth in range(
        1, DEEPEST
    ):  # OCDBT's d/, each process' own tree, the chunks of zarr arrays, items of other handlers
        yield Piece(
            f"data{depth}{mark}",
            "data",
            item + "/{name}" * depth,
            shared=True,
            required=False,
            loaded=False,
            described=True,
            unfinished=unfinished,
        )


LAYOUT = Layout(
    name="orbax",
    title="Orbax",
    pieces=(*_pieces(HOME, ""), *_pieces(f"{HOME}.orbax-checkpoint-tmp[-{{name}}]", "_tmp", unfinished=True)),
    resume=_resume,
    needs=("tree",),
    reshardable=True,
    compare_steps=False,
    # marks of a save that was finished, OCDBT's own files, the chunks of zarr arrays (w/0.0, w/c/0/0)
    traces=(
        re.compile(r"(?:^|/)(?:[a-z]+_)?\d+/(?:[^/]+/)?commit_success\.txt$"),
        re.compile(r"/array_metadatas/process_\d+$"),
        re.compile(r"/(?:ocdbt\.process_\d+/)?d/[0-9a-f]{32}$"),
        re.compile(r"(?:^|/)(?:[a-z]+_)?\d+/[^/]+/[^/]+/(?:\d+(?:\.\d+)*|c/\d+(?:/\d+)*)$"),
    ),
    reference=(
        "orbax-checkpoint _src/path/atomicity.py, checkpoint_manager.py: a directory is renamed, or "
        "committed by commit_success.txt"
    ),
    limits=(
        (
            "before 0.12 a local checkpoint has no commit file, so its absence counts only where the run's "
            "other checkpoints have one"
        ),
    ),
)
