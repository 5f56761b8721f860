"""Files that run code, write or read outside in other ways than by what a pickle calls itself are not ok."""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import helpers
import pytest
from helpers import bad, look, zipped
from places import FORMAT_FILES

from ckpt_tools.cli import execute
from ckpt_tools.formats import BY_NAME, Anatomy
from ckpt_tools.model.finding import Severity

PLAIN = BY_NAME["pickle_plain"]
P2 = b"\x80\2"
LOAD = b"ctorch.storage\n_load_from_bytes\n"
LOADER = b"ctorch.utils.data.dataloader\nDataLoader\n"
RUNS = P2 + b"cos\nmkdir\n(U\1xtR."
LEGACY = b"".join(pickle.dumps(v, 2) for v in (0x1950A86A20F9469CFC6C, 1001, {})) + RUNS


def blob(data: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(data)) + data


def codes(data: bytes, form: str = "pickle_plain") -> set[str]:
    return helpers.codes(look(data, BY_NAME[form]))


HANDED = {
    "collate_fn": LOADER + b"(]" + blob(LEGACY) + b"aN\x89NNK\0" + LOAD + b"tR",
    "a state": LOADER + b")\x81}(U\7datasetN" + b"U\ncollate_fn" + LOAD + b"ub", "a list that nothing calls": b"](" + LOAD + b"e",
    "getattr as a value": b"](cbuiltins\ngetattr\ne", "an item": LOADER + b")\x81(" + LOAD + b"e",
    "a factory": LOADER + b"(ccollections\ndefaultdict\n(" + LOAD + b"tRtR", "BytesIO": b"c_io\nBytesIO\n(" + blob(RUNS) + b"tR",
    "BytesIO of the old format": b"c_io\nBytesIO\n(" + blob(LEGACY) + b"tR",
    "BytesIO by its state": b"c_io\nBytesIO\n)\x81(" + blob(RUNS) + b"K\0Ntb",
    "getattr handed on": b"ctorch._tensor\n_rebuild_from_type_v2\n(cbuiltins\ngetattr\nNNNtR",
    "a loader handed on": b"ctorch._tensor\n_rebuild_from_type_v2\n(" + LOAD + b"NNNtR",
    "a default of getattr": b"cbuiltins\ngetattr\n(cmine\nThing\nU\1xcos\nsystem\ntR",
    "getattr of no name": b"cbuiltins\ngetattr\n(cmine\nThing\nNtR",
    "a loader of bytes that a call gives": LOAD + b"(c_codecs\nencode\n(U\1xU\5utf-8tRtR",
}  # fmt: skip


@pytest.mark.parametrize("way", HANDED)
def test_what_unpickles_is_unsafe_wherever_it_is_no_call_that_is_followed(way: str) -> None:
    assert "unsafe-pickle" in codes(P2 + HANDED[way] + b".")


@pytest.mark.parametrize(("deep", "code"), [(3, "unsafe-pickle"), (303, "unread-pickle")])
def test_files_in_files_in_buffers_are_read_three_deep(deep: int, code: str) -> None:
    data = RUNS
    for _ in range(deep):
        data = P2 + b"c_io\nBytesIO\n(" + blob(data) + b"tR."
    assert codes(data) == {code}


@pytest.mark.parametrize(
    ("maker", "given"),
    [
        ("torch.utils.data.dataloader:DataLoader", "(NNNNNNcmine\nthing\nt"),
        ("numpy.random._pickle:__bit_generator_ctor", "(cmine\nthing\nt"),
        ("torch._utils:_rebuild_parameter", "(NN](cmine\nthing\net"),
        ("torch._dynamo.convert_frame:ConvertFrame", "(cmine\nthing\nNt"),
        ("mmengine.logging.history_buffer:HistoryBuffer", "(cmine\nthing\nNt"),
        ("megatron.core.dist_checkpointing.mapping:ShardedTensorFactory", "(NNcmine\nthing\nNt"),
    ],
)
def test_what_no_list_has_is_suspect_where_it_is_given_to_what_calls_it(maker: str, given: str) -> None:
    module, _, name = maker.partition(":")
    anatomy = Anatomy()
    found = look(P2 + f"c{module}\n{name}\n{given}\x81.".encode("latin-1"), PLAIN, anatomy)
    assert "suspect-call" in helpers.codes(found)
    assert [u.called for u in anatomy.unlisted if u.name == "mine.thing"] == [True]


@pytest.mark.parametrize(
    "full",
    [
        "transformers.training_args:TrainingArguments", "trl.trainer.sft_config:SFTConfig", "torch.utils.data.dataloader:DataLoader",
        "accelerate.state:PartialState", "transformers.integrations.deepspeed:HfDeepSpeedConfig", "omegaconf.dictconfig:DictConfig",
        "ray.rllib.algorithms.ppo.ppo:PPOConfig",
    ],
)  # fmt: skip
def test_a_class_that_picklers_only_make_is_unsafe_where_it_is_called(full: str) -> None:
    name = "c{}\n{}\n".format(*full.split(":")).encode()
    again = b"ccopy_reg\n_reconstructor\n("
    made = (name + b")\x81", b"(" + name + b"o", again + name + b"c__builtin__\nobject\nNtR")
    handed_on = b"ctorch._tensor\n_rebuild_from_type_v2\n(" + name + b"NNNtR"
    called = (name + b")R", b"(" + name + b"No", again + b"cbuiltins\nobject\n" + name + b"NtR", handed_on)
    for data in (*made, *called):
        assert codes(P2 + data + b".") == ({"unsafe-pickle"} if data in called else set()), data


def script_with(code: bytes) -> bytes:
    """A TorchScript archive with more code in it."""
    with zipfile.ZipFile(FORMAT_FILES / "torch_zip/good/script.pt") as z:
        members = {n: z.read(n) for n in z.namelist() if "serialization_id" not in n}
    return zipped({n: data + code * n.endswith(".py") for n, data in members.items()})


@pytest.mark.parametrize(
    "code",
    [
        b'torch.from_file("x", True, 4)', b'ops.aten.from_file("x", True)', b'torch.save(x, "y")', b"f = torch.save\n", b'torch . # why\n save(x, "y")',
        b'getattr(torch, "sa" "ve")', b'getattr(torch, "sa\\x76e")', b'getattr(torch, "save")', b'ops.image.write_file("x", y)', b"self = torch; self.save",
    ],
)  # fmt: skip
def test_code_of_torchscript_that_touches_files_is_unsafe(code: bytes) -> None:
    assert "unsafe-pickle" in codes(script_with(b"\n" + code + b"\n"), "torch_zip")


def test_torchscript_is_never_ok_without_a_note_and_no_training_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = script_with(b'\nsave = self.save\n_0 = getattr(self, "0")\n')
    assert codes(plain, "torch_zip") <= {"odd-header", "bad-header"}
    data = (FORMAT_FILES / "torch_zip/good/script.pt").read_bytes()
    assert "needs-trust" in {f.code for f in look(data, BY_NAME["torch_zip"])}
    (tmp_path / "model_10.pt").write_bytes(data)
    assert execute(["plan", str(tmp_path)]) == 2
    assert "no-layout" in capsys.readouterr().err


LAMBDA = {"class_name": "Lambda", "config": {"function": {"class_name": "__lambda__", "config": {"code": base64.b64encode(b"x").decode()}}}}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        json.dumps(LAMBDA).encode(), json.dumps(LAMBDA).encode("utf-16"), json.dumps(LAMBDA).replace("_l", "\\u005fl").encode(),
        b'{"class_name": "Lambda", "config": {"function": ["4wAA"], "function_type" : "lambda"}}'
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_code_in_the_configuration_of_keras_is_unsafe(config: bytes, method: int) -> None:
    data = zipped({"metadata.json": b"{}", "config.json": config}, method)
    assert codes(data, "zip_archive") == {"unsafe-pickle"}


OF_HDF5 = [
    p for p in sorted((FORMAT_FILES / "hdf5/bad").iterdir())
    if p.name.startswith(("unsafe-pickle--keras-", "external-data", "path-escape"))
]  # fmt: skip


@pytest.mark.parametrize("path", OF_HDF5, ids=lambda p: p.name)
def test_code_of_keras_in_hdf5_and_what_it_keeps_in_other_files_is_an_error(path: Path) -> None:
    found = bad(look(path.read_bytes(), BY_NAME["hdf5"]))
    assert {(f.code, f.severity) for f in found} == {(path.name.partition("--")[0], Severity.ERROR)}


def test_a_lambda_layer_of_a_named_function_is_asked_about_and_other_layers_are_not() -> None:
    named = b'{"class_name": "Lambda", "config": {"function": {"class_name": "function", "config": "mine"}}}'
    dense = b'{"module": "keras.models", "class_name": "Sequential", "config": {"layers": [{"module": "builtins"}]}}'
    for config, found in (named, {"suspect-call"}), (dense, set()):
        assert codes(zipped({"m": b"{}", "config.json": config}), "zip_archive") == found


def nemo(*more: tuple[str, bytes, bytes, str], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    begin = ((".", tarfile.DIRTYPE, b"", ""), ("./model_config.yaml", b"0", b"x", ""), ("./m.distcp", b"0", b"", ""))  # fmt: skip
    with tarfile.open(fileobj=out, mode="w", format=form) as t:
        for name, kind, data, link in (*begin, *more):
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), link
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


SYM, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize(
    "members",
    [
        [("../x", b"0", b"x", "")], [("/x", b"0", b"x", "")], [(f"../{'a/' * 60}x", b"0", b"x", "")], [("a", SYM, b"", "..")], [("a", SYM, b"", "/tmp")],
        [("a", HARD, b"", "../x")], [("a", SYM, b"", "b"), ("a/x", b"0", b"x", "")], [("d", SYM, b"", "."), ("e", SYM, b"", "d/..")],
        [("a", tarfile.FIFOTYPE, b"", "")], [("a", tarfile.CHRTYPE, b"", "")], [("a", SYM, b"", "d/" * 10 + "../" * 20)],
    ],
)  # fmt: skip
def test_an_archive_that_leaves_its_directory_is_an_escape(
    members: list[tuple[str, bytes, bytes, str]], form: int
) -> None:
    data = nemo(*members, form=form)
    assert "path-escape" in codes(data, "nemo")
    assert "path-escape" in codes(gzip.compress(data), "nemo")


def test_links_within_an_archive_are_none() -> None:
    links = (("d/b", SYM, b"", "a"), ("e/c", SYM, b"", "../d/a"), ("f", HARD, b"", "d/a"))
    assert "path-escape" not in codes(nemo(("d/a", b"0", b"x", ""), *links), "nemo")


def test_a_header_behind_a_link_with_a_size_is_read_as_pythons_tarfile_does() -> None:
    data = bytearray(nemo(("a", SYM, b"", "b"), ("../x", b"0", b"x", ""), form=tarfile.USTAR_FORMAT))
    at = data.index(b"a\0\0\0")
    data[at + 124 : at + 136] = b"00000002000\0"
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    with tarfile.open(fileobj=io.BytesIO(bytes(data))) as t:
        assert t.getnames()[-1] == "../x"
    assert "path-escape" in codes(bytes(data), "nemo")


@pytest.mark.parametrize("name", ["./artifact", "./tokenizer.model", "./model_weights.ckpt"])
@pytest.mark.parametrize("data", [RUNS, LEGACY, zipped({"a/data.pkl": RUNS, "a/version": b"3"})])
def test_pickles_in_an_archive_are_judged_whatever_they_are_called(name: str, data: bytes) -> None:
    packed = nemo((name, b"0", data, ""))
    assert "unsafe-pickle" in codes(packed, "nemo")
    assert "unsafe-pickle" in codes(gzip.compress(packed), "nemo")


def array(kind: bytes) -> bytes:
    """The header of one of NumPy's of one element."""
    told = b"{'descr': '%b', 'fortran_order': False, 'shape': (1,), }" % kind
    return b"\x93NUMPY\1\0v\0" + told.ljust(117) + b"\n"


OBJECTS, NUMBERS = array(b"|O"), array(b"<f4") + b"abcd"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("name", ["x", "x.txt", "x.npy", "a/b"])
def test_members_of_npz_are_arrays_by_their_bytes(name: str, method: int) -> None:
    for first in (True, False):
        order = [(name, OBJECTS + RUNS), ("w.npy", NUMBERS)]
        data = zipped(dict(order if first else order[::-1]), method)
        assert "unsafe-pickle" in helpers.codes(look(data)), first
    assert codes(zipped({"w.npy": NUMBERS, "notes": RUNS}, method), "npz") == {"unsafe-pickle"}
    assert codes(zipped({"w.npy": NUMBERS, name: NUMBERS}, method), "npz") == set()


def test_the_index_of_dcp_in_an_archive_is_judged() -> None:
    assert "unsafe-pickle" in codes(nemo(("./w/.metadata", b"0", RUNS, "")), "nemo")
