"""A job starts from nothing only where nothing of a checkpoint is, or where the caller says so."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import small_files
from fixture_trees import CASES, TREES, below, materialise, tree_of
from in_process import executed, started
from places import FORMAT_FILES
from run_helpers import broken, megatron, sparse
from timed import put
from told_trees import KINDS, Question, hold, table

from ckpt_tools import errors, layouts
from ckpt_tools.api import plan, scan
from ckpt_tools.formats import FORMATS, HEAD, names
from ckpt_tools.formats.named import MANIFESTS, NAMED
from ckpt_tools.layouts import LAYOUTS
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection

if sys.version_info >= (3, 11):
    import tomllib as toml_parser
else:
    import tomli as toml_parser

FIRST = Selection(allow_none=True, level=Level.STRUCTURE)
TRACKERS = {layout.tracker.file for layout in LAYOUTS} - {""}
VAGUE = {"json_member", "mcore_integrity", "mindspore_strategy", "npy", "npz", "eqx", "text_member"} | {
    row.name for row in NAMED if row.family == MANIFESTS
}
"""Their magics are those of any text, JSON or protobuf, or of data; no save writes one of them alone, under a name
that says nothing.
"""


def state(path: Path) -> bool:
    """Whether the content is that of a checkpoint, whatever the name says."""
    head = path.read_bytes()[:HEAD]
    return any(f.magic(head) for f in FORMATS if f.name not in VAGUE)


def left(root: Path) -> set[Path]:
    """Files that keep a directory from being that of a first launch: state outside saves that never finished,
    and trackers.
    """
    unfinished = [c for c in scan(str(root)).checkpoints if c.unfinished]
    homes = [p.home for c in unfinished for p in c.parts if p.home]
    homes += [str(p) for p in root.rglob("*.orbax-checkpoint-tmp*")]
    begun = {Path(p.path) for c in unfinished for p in c.parts}
    states = (p for p in below(root) if p not in begun and state(p))
    kept = {p for p in states if not any(f"{p}".startswith(f"{home}/") for home in homes)}
    return kept | {p for p in below(root) if p.name in TRACKERS}


def fresh(root: Path) -> bool:
    """Whether a job would start from nothing."""
    try:
        return plan(str(root), FIRST).checkpoint is None
    except (errors.NoneUsable, errors.UsageError, errors.CannotLook):
        return False


def held(root: Path) -> None:
    if fresh(root):
        assert left(root) == set()


def keep(root: Path, wanted: Callable[[Path], bool]) -> Path:
    """A tree of hard links to the files that are wanted, and the directories above them."""
    target = root.parent / "kept"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for p in filter(wanted, below(root)):
        to = target / p.relative_to(root)
        to.parent.mkdir(parents=True, exist_ok=True)
        os.link(p, to)
    return target


def tracker(path: Path) -> bool:
    return path.name in TRACKERS


def index(path: Path) -> bool:
    return names.may_be_index(path.name)


def renamed(root: Path) -> Path:
    """The tree with directories whose names say nothing, and without its trackers."""
    target = keep(root, lambda p: not tracker(p))
    directories = sorted((p for p in target.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts))
    for i, p in enumerate(directories):
        p.rename(p.parent / f"nonsense{'x' * i}")
    return target


@pytest.mark.slow
@pytest.mark.share(24)
@pytest.mark.parametrize("case", TREES)
def test_what_is_left_of_a_checkpoint_is_never_a_first_launch(case: Path, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    held(renamed(root))
    for only in (tracker, index, lambda p: not tracker(p) and not index(p)):
        held(keep(root, only))
    for one in [p for p in below(root) if tracker(p) or state(p)]:
        held(keep(root, lambda p, one=one: p == one))


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.parent.name}-{case.parent.name}")
@pytest.mark.parametrize("backwards", [False, True])
def test_files_lost_one_by_one_never_make_a_first_launch(case: Path, backwards: bool, tmp_path: Path) -> None:
    root = materialise(case, tmp_path)
    for path in sorted((p for p in root.rglob("*") if p.is_file()), reverse=backwards):
        held(root)
        path.unlink()
    shutil.rmtree(root)  # an empty directory called x.ckpt is a reason to ask, too
    root.mkdir()
    assert fresh(root)


def kinds(root: Path) -> dict[str, set[Path]]:
    """Files of finished checkpoints by what they are called without its numbers, where two have one each."""
    owners: dict[str, dict[Path, str]] = {}
    for c in scan(str(root)).checkpoints:
        own = {Path(p.path) for p in c.parts}
        if all(p.home for p in c.parts):
            own |= {p for p in Path(c.path).rglob("*") if p.is_file()}
        for p in set() if c.unfinished else own:
            owners.setdefault(re.sub(r"\d+", "N", str(p.relative_to(root))), {})[p] = c.path + c.label
    return {kind: set(files) for kind, files in owners.items() if len(set(files.values())) > 1}


@pytest.mark.slow
@pytest.mark.share(12)
@pytest.mark.parametrize("case", TREES)
def test_one_kind_of_file_left_of_several_checkpoints_is_never_a_first_launch(
    case: Path, tmp_path: Path
) -> None:
    root = materialise(case, tmp_path)
    for kind, files in kinds(root).items():
        if not kind.endswith(
            ("config.json", "config.yaml")
        ):  # every save begins with them, and no state is in them
            assert not fresh(keep(root, files.__contains__)), kind


@pytest.mark.parametrize("tracker", sorted(TRACKERS))
def test_a_tracker_without_its_checkpoint(tracker: str, tmp_path: Path) -> None:
    said = {
        "checkpoint": 'model_checkpoint_path: "ckpt-500"\n',
        "checkpoint.bv-LAST": "000000500",
        "checkpoint_manager_snapshot.json": '{"latest_checkpoint_result": {"checkpoint_dir_name": "at_500"}}',
        "last_checkpoint": "out/iter_500.pth",
        "latest_checkpoint.txt": "iter_500.pth",
        "latest_checkpointed_iteration.json": '{"latest_checkpointed_iteration": 500}',
    }
    file = put(tmp_path / "run" / tracker, said.get(tracker, "500"))
    with pytest.raises(errors.NoneUsable, match=r"500(\.pth)?, which is not there") as caught:
        plan(str(tmp_path), FIRST)
    assert [f.code for f in caught.value.plan.warnings] == ["dangling-tracker"]  # type: ignore[union-attr]
    file.write_bytes(b"")
    with pytest.raises(errors.UsageError, match="only you know"):
        plan(str(tmp_path), FIRST)
    file.unlink()
    file.symlink_to("gone")
    with pytest.raises(errors.NoneUsable, match="leads to gone"):
        plan(str(tmp_path), FIRST)
    file.unlink()
    file.mkdir()  # a directory of that name says nothing
    assert fresh(tmp_path)


# -- what a real first launch finds --------------------------------------------------------------------------


BYSTANDERS = {
    "train.log": b"step 1 loss 3.2\n", "slurm-4711.out": b"started\n", "nohup": b"started \xe2\x9c\x93\n" * 800, "events.out.tfevents.1": b"\x18\0\0\0",
    "data/part-0.arrow": b"ARROW1", "data/part-1.parquet": b"PAR1", "data/train.jsonl": b"{}\n", "data/shard-000.tar": b"0001.jpg",
    "data/corpus_text_document.bin": b"\1\0", "data/corpus_text_document.idx": b"MMIDIDX\0\0",
    "data/train.tfrecord-00000-of-00010": b"\0",
    "core": b"\x7fELF\2\1\1", "core.4711": b"\x7fELF\2\1\1", "train-dump": b"\x7fELF\2\1\1", "env/lib/libtorch_cuda.so": b"\x7fELF\2\1\1",
    "wandb/run-1/run-1.wandb": b":W&B", "wandb/run-1/files/output.log": b"started\n", ".git/objects/pack/pack-1.pack": b"PACK",
}  # fmt: skip
"""Large files that lie beside the first start of a job, and how they begin."""


SMALL = ["config.json", "tokenizer.json", "tokenizer_config.json", "params.json", "hparams.json"]


@pytest.mark.slow
def test_a_real_first_launch(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    root = tmp_path / "run"
    for name, begins in BYSTANDERS.items():
        sparse(root / name, begins)
    for name in (*SMALL, "src/train.py"):
        put(root / name, "{}")
    strategy = min((FORMAT_FILES / "mindspore_strategy/good").glob("*.ckpt"))
    put(root / "strategy/src_strategy_0.ckpt", strategy.read_bytes())
    for of in ("empty", "run"):
        assert executed(["plan", str(tmp_path / of), "--json"])[0] == 3
        code, out, _ = executed(["plan", str(tmp_path / of), "--allow=none", "--json"])
        answer = json.loads(out)
        assert (code, answer["checkpoint"], answer["warnings"]) == (0, None, [])


@pytest.mark.slow
def test_each_bystander_alone(tmp_path: Path) -> None:
    """Together they might excuse each other."""
    for i, (name, begins) in enumerate(BYSTANDERS.items()):
        sparse(tmp_path / str(i) / name, begins)
        if name.endswith(".bin"):
            sparse(tmp_path / str(i) / name.replace(".bin", ".idx"), BYSTANDERS[name.replace(".bin", ".idx")])
        assert plan(str(tmp_path / str(i)), FIRST).checkpoint is None, name


@pytest.mark.parametrize("name", ["step500", "model.weights", "old.zip", "old.tar"])
def test_a_checkpoint_under_a_strange_name(name: str, tmp_path: Path) -> None:
    """Its beginning tells: a torch archive of more than 64 MiB."""
    tar = min((FORMAT_FILES / "torch_tar/good").iterdir())
    good = tar.read_bytes() if name == "old.tar" else small_files.megatron(5, 0, 1, 1, 1)
    sparse(tmp_path / name, good)
    with pytest.raises(errors.NotRecognised, match=name):
        plan(str(tmp_path), FIRST)
    (tmp_path / name).write_bytes(good)
    for i in range(100):  # among a hundred small files of no known kind
        (tmp_path / f"part{i:03d}").write_bytes(b"\0\1\2\3")
    with pytest.raises(errors.NotRecognised, match=name):
        plan(str(tmp_path), FIRST)


def test_archives_of_something_else(tmp_path: Path) -> None:
    """They begin as torch's do: a member in a folder, a pax header."""
    (tmp_path / "photo").write_bytes(b"pixels")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as z:
        z.write(tmp_path / "photo", "train/0001.jpg")
    with tarfile.open(tmp_path / "data.tar", "w", format=tarfile.PAX_FORMAT) as t:
        t.add(tmp_path / "photo", "train/0001.jpg")
    assert b"PaxHeader" in (tmp_path / "data.tar").read_bytes()
    assert plan(str(tmp_path), FIRST).checkpoint is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("tracker", 4), ("index", 2), ("large", 2), ("damaged", 4)])
def test_all_commands_answer_alike(name: str, code: int, tmp_path: Path) -> None:
    """A tracker alone, a file of no layout, a large file of no known kind, checkpoints of which none is
    usable: --allow fresh starts from nothing, --allow none does not.
    """
    root = tmp_path / name
    if name == "damaged":
        broken(megatron(root, (10,)), 10)
    elif name == "large":
        sparse(root / "blob", b"\0\1")
    elif name == "tracker":
        put(root / "latest", "global_step500")
    else:
        put(root / "zarr.json", '{"zarr_format": 3, "node_type": "group"}')
    plans = ["--plan-dir", str(tmp_path / "plans")]
    for words in (["plan"], ["latest", "--rank", "0"], ["hook", *plans]):
        found, _, err = executed([*words, str(root), "--allow=none"])
        assert found == code and ("--allow fresh" in err or name == "damaged"), words
        assert executed([*words, str(root), "--allow=fresh"])[0] == 0, words
    assert started([str(root), *plans, "--allow=none"], ["train"])[::2] == (code, None)
    assert started([str(root), *plans, "--allow=fresh"], ["train"]).words == ["train"]


def test_a_save_under_way_excuses_nothing_beside_it(tmp_path: Path) -> None:
    """Its files lie among those of others: only they are unfinished."""
    kept = keep(tree_of("nvrx-local/three", tmp_path), lambda p: ".dirty" in p.name)
    assert fresh(kept)
    (kept / "session/1/_METADATA").write_text('{"tree_metadata": {}}')
    assert not fresh(kept)


@pytest.mark.parametrize("packed", ["policy.pth", "run/step_300.safetensors"])
def test_an_archive_with_a_state_in_it_is_no_first_launch(packed: str, tmp_path: Path) -> None:
    """As ``model.save("ppo_cartpole")`` of Stable-Baselines3 writes it, whatever else comes first in it."""
    for name in (packed, packed + ".log"):
        with zipfile.ZipFile(tmp_path / "ppo_cartpole.zip", "w") as z:
            for member, data in {"data": os.urandom(9000), name: b"weights", "info.txt": b"Linux"}.items():
                z.writestr(member, data)
        assert fresh(tmp_path) == (name != packed)


def test_a_model_of_nemo_alone_is_no_first_launch(tmp_path: Path) -> None:
    put(tmp_path / "asr.nemo", (FORMAT_FILES / "nemo/good/asr.nemo").read_bytes())
    assert not fresh(tmp_path)


ENDINGS = toml_parser.loads((Path(layouts.__file__).parent / "loops.toml").read_text())["endings"]


@pytest.mark.parametrize(
    ("stem", "ending"),
    [
        (stem, ending)
        for stem in ("model", "trainer", "step_20")
        for ending in ENDINGS
        # containers of anything
        if ending != "tar" and (stem != "trainer" or ending not in ("bin", "npy", "npz"))
    ],
)
def test_nobody_resumes_from_bytes_of_no_format(stem: str, ending: str, tmp_path: Path) -> None:
    """Whatever ending a layout takes for that of a state, something reads it: 'trainer.states' was resumed
    from unread.
    """
    (tmp_path / f"{stem}.{ending}").write_bytes(b"\xfe" + bytes(range(256)) * 8)
    with pytest.raises(errors.CkptError) as stopped:
        plan(str(tmp_path), FIRST)
    assert stopped.value.exit_code in (2, 4)


FIRST_SAVED = [
    case for case in CASES if any(x.name == case.parent.parent.name and x.complete.first for x in LAYOUTS)
]


@pytest.mark.parametrize("case", FIRST_SAVED, ids=lambda case: "/".join(case.parts[-3:-1]))
def test_a_lone_save_that_lost_what_is_written_first_is_no_first_launch(case: Path, tmp_path: Path) -> None:
    """A job that dies in its first save has written that."""
    root = materialise(case, tmp_path)
    newest = plan(str(root)).checkpoint
    assert newest is not None
    complete = next(x for x in LAYOUTS if x.name == newest.layout).complete
    last = next(p.path for p in newest.parts if p.role == complete.commit)
    lone = keep(root, lambda path: str(path) in {p.path for p in newest.parts} - {last})
    assert fresh(lone)
    for p in newest.parts:
        if p.role in complete.first:
            (lone / Path(p.path).relative_to(root)).unlink()
    with pytest.raises(errors.NotRecognised, match="written before the others"):
        plan(str(lone), FIRST)


def _pickled(protocol: int) -> bytes:
    return pickle.dumps({"step": 300, "weights": [0.5] * 2000}, protocol)


KINDS |= {
    "saved": lambda n: small_files.megatron(5, 0, 1, 1, 1),
    "pickle": _pickled,
    "nopickle": lambda n: _pickled(n)[:2] + b"\xff" + _pickled(n)[3:],
    "own": lambda n: b"\x01\xff\x00own" * 50,
    "counts": lambda n: pickle.dumps({"step": 4, "epoch": 2}, 4),
    "head": lambda n: (
        b"\x93NUMPY\1\0",
        b"\x80\x04what\0\1",
        b"x\x9cwhatever",
        b"tree\nversion=v4\nnum_class=1\n",
    )[n],
    "catboost": lambda n: b"CPU\0\1",
    "payload": lambda n: small_files.PAYLOAD,
}


def two_runs(root: Path) -> Path:
    for name in ("llm", "vision"):
        megatron(root / name, (10,))
    return root


MADE = {"runs": two_runs, "nowhere": lambda root: root / "gone/run"}
FLAGS = "allow_none=yes level=structure"
TREES_OF_FIRST = table(
    """
    nowhere
        as it is -> exit 5 tree/could-not-look
    planted
        # A mark says that a save was finished.
        run/100/commit_success.txt:empty -> exit 2 tree/first-launch-leftovers
        # A job dies in one first save, and not in two.
        step-10/__0_0.distcp:payload -> nothing +unfinished-save
        step-10/__0_0.distcp:payload step-20/__0_0.distcp:payload
            -> exit 2 tree/first-launch-leftovers +unfinished-save
        as it is | run=llm -> nothing   # the first run of a root
        # Contents tell, whatever the name: of gensim, d3rlpy, and of loops of one's own.
        old/{state,model.custom,agent_300.bin}:saved -> exit 2 choice/unplaced-newer +no-layout
        old/weights.bin:saved -> old/weights.bin
        old/{state,weights.bin,model.custom,agent_300.bin}:text -> nothing
        {w2v.model,model_60.d3,vectors.kv,checkpoint_300.pickle,state}:pickle{2,3,4,5}
            -> exit 2 choice/unplaced-newer +no-layout
        {w2v.model,model_60.d3,vectors.kv}:nopickle{2,3,4,5} -> nothing
        {resnet50,sample_100,model_20.log,data/100,checkpoints/100.png,logs/version_0/hparams.yaml}:own
            -> nothing
        model-last/config.json -> nothing
        # What Paddle or Flax saved, and what may be a model, is never taken for nothing.
        model.{pdparams,pdopt,pdstates}:counts -> exit 4 choice/none-usable -missing-part
        model.{pdckpt,msgpack}:counts -> exit 2 choice/unplaced-newer +no-layout
        a.eqx:head{0,1,2} -> exit 4 choice/unplaced-newer +no-layout
        model_10.joblib:head0 -> exit 4 choice/none-usable -truncated -wrong-format
        model_10.joblib:head1 -> exit 4 choice/none-usable -bad-pickle
        model_10.joblib:head2 -> exit 4 choice/none-usable -bad-compression -wrong-format
        model.joblib.gz:head{0,1,2} -> exit 2 choice/unplaced-newer +no-layout
        # A directory as torchsnapshot alone makes it.
        s/0/optim/note.log:own s/0/optim/groups/note.log:own -> exit 2 tree/first-launch-leftovers
        # SheepRL's replay buffer.
        version_0/memmap_buffer/rank_0/env_0/observations.memmap:{empty,zeros} -> nothing
        # A state in a format that is not read.
        {booster_100.ubj,booster.xgb,m.bst,model.lgb,m.cbm,model.txt.snapshot_iter_3}:head{1,3}
            -> exit 2 choice/unplaced-newer +no-layout
        {policy.tdz,policy.tdc,net_iter_100.solverstate,model-1.mpk,m.mpk.gz,state.dill}:head{1,3}
            -> exit 2 choice/unplaced-newer +no-layout
        experiment.cbsnapshot:catboost -> exit 2 choice/unplaced-newer +no-layout
        # A first save that was not renamed, of any framework: only the caller knows whether more was there.
        step_10.tmp/state.pt:state10 -> exit 2 tree/first-launch-leftovers +unfinished-save
        step_10.tmp/state.pt:state10! -> nothing +unfinished-save
        step_10.tmp/state.pt:empty -> nothing +unfinished-save
        step_10.tmp/state.pt:state10! step_20.tmp/state.pt:state20!
            -> exit 2 tree/first-launch-leftovers +unfinished-save
        step_10.pt.tmp:state10! step_20.pt.tmp:state20!
            -> exit 2 tree/first-launch-leftovers +unfinished-save
        model_step_10.pt.tmp:state10! optim_step_10.pt.tmp:state10! -> nothing +unfinished-save
        # TorchRL's Trainer.
        trainer.pt.tmp:state10 -> exit 2 tree/first-launch-leftovers +unfinished-save
        trainer.pt.tmp:{state10!,empty} -> nothing +unfinished-save
    runs
        as it is | run=lmm -> exit 2 tree/several-runs   # a misspelt run is a question
        as it is | run=lmm allow_fresh=yes -> exit 2 tree/several-runs
        as it is | prefix=x -> exit 2 tree/several-runs
        as it is | run=lmm allow_missing=yes -> nothing +missing-run
        as it is | run=llm allow_missing=yes -> llm/iter_0000010
        as it is | run=llm layout=dcp allow_missing=yes -> exit 4 tree/filters-hide-all
        # A run that lost its checkpoints is not new, and what others lost is not its business.
        rm llm/iter_0000010 | run=llm allow_missing=yes
            -> exit 4 tree/first-launch-leftovers +dangling-tracker
        then mkdir new | run=new allow_missing=yes -> nothing +missing-run
    """,
    FLAGS,
    **MADE,
)


@pytest.mark.parametrize(("tree", "asked"), TREES_OF_FIRST)
def test_what_is_a_first_launch(tree: str, asked: list[Question], tmp_path: Path) -> None:
    hold(tree, asked, tmp_path)
