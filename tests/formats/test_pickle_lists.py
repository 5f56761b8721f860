"""Which names in pickles are dangerous, which are known, and which are nobody's promise; the floor are the
lists of picklescan, fickling and modelscan.
"""

from __future__ import annotations

import pickle

import pytest
from helpers import bad, look

from ckpt_tools.formats import BY_NAME, Anatomy
from ckpt_tools.formats.pickles.globals import _ENUMERATIONS, EXACT, Global, Trust, find_trust, to_python3
from ckpt_tools.model.finding import Finding, Severity

PLAIN = BY_NAME["pickle_plain"]
P2, P4 = b"\x80\2", b"\x80\4"
PICKLESCAN = (
    "__builtin__:eval,compile,getattr,apply,exec,open,breakpoint"
    " builtins:eval,compile,getattr,apply,exec,open,breakpoint"
    " cloudpickle.cloudpickle:_builtin_type,_make_function,_function_setstate,_make_cell,_make_empty_cell,subimport"
    " types:CodeType aiohttp:* asyncio:* bdb:* commands:* ctypes:* functools:partial httplib:*"
    " logging:FileHandler _io:FileIO numpy.f2py:* nt:* numpy.testing._private.utils:* posix:*"
    " _operator:attrgetter,itemgetter,methodcaller operator:attrgetter,itemgetter,methodcaller os:*"
    " requests.api:* runpy:* shutil:* socket:* ssl:* subprocess:* sys:* code:InteractiveInterpreter.runcode"
    " cProfile:* distutils.file_util:* doctest:debug_script ensurepip:_run_pip"
    " idlelib.autocomplete:AutoComplete.get_entity idlelib.calltip:get_entity"
    " idlelib.debugobj:ObjectTreeItem.SetText idlelib.pyshell:ModifiedInterpreter.runcode"
    " idlelib.run:Executive.runcode imaplib:IMAP4_stream lib2to3.pgen2.grammar:Grammar.loads"
    " lib2to3.pgen2.pgen:ParserGenerator.make_label pdb:* pickle:* _pickle:* pip:* pkgutil:resolve_name pty:*"
    " profile:run pydoc:* test.support:* timeit:* torch._dynamo.guards:GuardBuilder.get"
    " torch._inductor.codecache:compile_file"
    " torch.fx.experimental.symbolic_shapes:ShapeEnv.evaluate_guards_expression"
    " torch.jit.unsupported_tensor_ops:execWrapper torch.serialization:load"
    " torch.utils._config_module:ConfigModule.load_config torch.utils.bottleneck.__main__:run_cprofile"
    " torch.utils.collect_env:run torch.utils.data.datapipes.utils.decoder:basichandlers"
    " trace:Trace.run,Trace.runctx urllib.request:* uuid:_get_command_stdout venv:* webbrowser:*"
    " _osx_support:* _aix_support:* _pyrepl:*"
)
FICKLING = (
    "__builtin__ __builtins__ builtins os posix nt subprocess sys pty commands multiprocessing "
    "_posixsubprocess code codeop runpy marshal types compile exec eval doctest importlib _frozen_importlib "
    "_frozen_importlib_external _imp pkgutil zipimport gc site unittest inspect test _operator operator "
    "functools cProfile profile pdb bdb timeit trace socket ssl httplib http urllib urllib2 requests aiohttp "
    "asyncio webbrowser smtplib imaplib ftplib poplib telnetlib nntplib ctypes _ctypes pickle _pickle dill "
    "cloudpickle joblib shutil tempfile filecmp distutils pydoc pexpect venv ensurepip pip idlelib lib2to3 "
    "socketserver xmlrpc signal _signal threading _thread atexit sqlite3 _sqlite3 fileinput glob platform "
    "linecache difflib compileall py_compile mmap select selectors logging syslog tarfile zipfile shelve uuid "
    "_osx_support _aix_support torch.hub torch._dynamo torch._inductor torch.jit torch.compile numpy.f2py "
    "numpy.distutils"
)
MODELSCAN = "__builtin__:__import__ builtins:__import__ aiohttp.client:*"
"""What picklescan does not have."""
CALLED_ONLY = {"builtins:getattr", "__builtin__:getattr", "functools:partial"}
"""Real checkpoints have them: getattr for members of enumerations, where it is followed, and partial in
schedulers. Called with what is harmless they are.
"""


def floor() -> list[str]:
    out = []
    for entry in (*PICKLESCAN.split(), *MODELSCAN.split()):
        module, _, names = entry.partition(":")
        out += [f"{module}:{n}" for n in (["anything"] if names == "*" else names.split(","))]
    return sorted(set(out))


def called(dotted: str, protocol: int = 2) -> list[Finding]:
    module, _, name = dotted.partition(":")
    data = f"c{module}\n{name}\n".encode() + b")R."
    return look(bytes((0x80, protocol)) + data, PLAIN)


@pytest.mark.parametrize("dotted", floor())
def test_what_picklescan_and_modelscan_list_is_unsafe(dotted: str) -> None:
    followed = {"suspect-call", "needs-trust"} if dotted in CALLED_ONLY else set()
    assert {f.code for f in called(dotted)} & ({"unsafe-pickle"} | followed)


@pytest.mark.parametrize("module", FICKLING.split())
def test_no_call_into_what_fickling_lists_is_ok(module: str) -> None:
    assert bad(called(f"{module}:anything"))


@pytest.mark.parametrize(
    "dotted",
    [
        "random:_os.system", "logging:os.system", "torch.serialization:os.system", "mine:np.load", "mine:helpers.subprocess.run", "mine:_sys.modules",
        "mine:pd.read_pickle", "mine:thing.__globals__", "mine:Thing.__init__.__globals__", "pathlib:Path.unlink", "pathlib:PosixPath.write_text",
        "mine:torch.hub.load", "mine:random.SystemRandom", "six.moves.builtins:eval", "mine:pickle", "mine:_os", "mine.__main__:x", "torch._utils:importlib.import_module",
        "mine:a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r",
    ],
)  # fmt: skip
def test_a_module_reached_through_another_is_unsafe(dotted: str) -> None:
    assert "unsafe-pickle" in {f.code for f in called(dotted)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("__builtin__:set", "builtins:set"), ("copy_reg:_reconstructor", "copyreg:_reconstructor"), ("commands:getoutput", "subprocess:getoutput"),
        ("itertools:izip", "builtins:zip"), ("UserDict:UserDict", "collections:UserDict"), ("__builtin__:xrange", "builtins:range"),
        ("cPickle:loads", "pickle:loads"), ("exceptions:StandardError", "builtins:Exception"), ("mine:Net", "mine:Net"),
    ],
)  # fmt: skip
def test_names_of_python_2_are_those_that_pickle_makes_of_them(old: str, new: str) -> None:
    name, renamed = Global(*old.split(":")), Global(*new.split(":"))
    assert to_python3(name, 2) == renamed
    assert to_python3(name, 3) == name
    if new.partition(":")[0] in ("builtins", "collections"):
        real = pickle.loads(f"c{name.module}\n{name.name}\n.".encode(), fix_imports=True)  # our own text
        assert real.__module__.partition(".")[0] == renamed.module or real.__name__ == renamed.name


def test_a_name_of_python_2_in_a_pickle_of_python_3_is_another() -> None:
    assert bad(called("copy_reg:_reconstructor", 2)) == []
    assert [f.code for f in bad(called("copy_reg:_reconstructor", 3))] == ["suspect-call"]


WAYS = {
    "REDUCE": P2 + b"cmine\nthing\n)R.",
    "NEWOBJ": P2 + b"cmine\nThing\n)\x81.",
    "NEWOBJ_EX": P4 + b"cmine\nThing\n)}\x92.",
    "OBJ": P2 + b"(cmine\nThing\no.",
    "INST": P2 + b"(imine\nThing\n.",
    "copyreg": P2 + b"ccopy_reg\n_reconstructor\n(cmine\nThing\nc__builtin__\nobject\nNtR.",
    "copyreg with a base": P2 + b"ccopy_reg\n_reconstructor\n(c__builtin__\nobject\ncmine\nThing\nNtR.",
    "BUILD": P2 + b"cbuiltins\ngetattr\n(cmine\nThing\nU\1xtR}b.",
    "SETITEM": P2 + b"cbuiltins\ngetattr\n(cmine\nThing\nU\1xtRNNs.",
    "APPEND": P2 + b"cbuiltins\ngetattr\n(cmine\nThing\nU\1xtRNa.",
    "a method": P2 + b"cbuiltins\ngetattr\n(cmine\nThing\nU\1xtR)R.",
    "handed on": P2 + b"ctorch._tensor\n_rebuild_from_type_v2\n(cmine\nthing\nNNNtR.",
    "handed to a scheduler": P2 + b"ctorch.optim.lr_scheduler\nLambdaLR\n(Ncmine\nthing\ntR.",
    "handed on in a list": P2 + b"ctorch._tensor\n_rebuild_from_type_v2\n(NN](cmine\nthing\neNtR.",
    "__newobj__ of a class reached": P2 + b"ccopy_reg\n__newobj__\n(cbuiltins\ngetattr\n(cmine\nThing\nU\1xtRtR.",
    "made by a class": P2 + b"cdecimal\nDecimal\n)R)R.",
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_name_in_no_list_that_is_called_is_suspect(way: str) -> None:
    anatomy = Anatomy()
    found = look(WAYS[way], PLAIN, anatomy)
    assert {f.code for f in bad(found)} == {"suspect-call"}
    assert all(f.severity is Severity.WARNING for f in bad(found))
    assert any(u.called for u in anatomy.unlisted)


def test_a_name_in_no_list_that_is_only_named_is_a_note() -> None:
    anatomy = Anatomy()
    found = look(P2 + b"(cmine\nThing\ncmine.others\nthing\nt.", PLAIN, anatomy)
    assert {f.code for f in found} == {"not-checksummed", "needs-trust"}
    assert [(u.name, u.called) for u in anatomy.unlisted] == [("mine.Thing", False), ("mine.others.thing", False)]  # fmt: skip


@pytest.mark.parametrize(
    "dotted",
    [
        "torch.distributed.checkpoint.metadata:Metadata", "argparse:Namespace", "megatron.core.transformer.enums:AttnBackend", "numpy:dtype",
        "megatron.core.enums:ModelType.encoder_or_decoder", "deepspeed.runtime.zero.config:ZeroStageEnum", "numpy._core.multiarray:_reconstruct",
        "numpy.core.multiarray:scalar", "datetime:datetime", "pathlib:PosixPath", "pathlib._local:PosixPath", "omegaconf.dictconfig:DictConfig",
        "lightning.fabric.utilities.data:AttributeDict", "torch.nn.modules.conv:Conv2d", "torch.optim.lr_scheduler:StepLR", "torch.distributed._mesh_layout:_MeshLayout", "torch.optim.adamw:AdamW", "signal:Signals",
        "numpy.dtypes:UInt32DType", "torch.storage:_load_from_bytes", "transformers.training_args:TrainingArguments", "collections:deque",
        "trl.trainer.reward_config:RewardConfig", "trl.experimental.iw_opd.iw_opd_config:IWOPDConfig", "llamafactory.hparams.training_args:TrainingArguments",
        "sentence_transformers.training_args:SentenceTransformerTrainingArguments", "sentence_transformers.cross_encoder.training_args:CrossEncoderTrainingArguments",
        "axolotl.core.training_args:AxolotlTrainingArguments", "axolotl.core.training_args:AxolotlKTOConfig",
        "axolotl.core.trainers.grpo.args:AxolotlGRPOConfig", "swift.trainers.arguments:Seq2SeqTrainingArguments", "swift.rlhf_trainers.arguments:GRPOConfig",
        "optax._src.transform:ScaleByAdamState", "optax._src.base:EmptyState", "optax.transforms._accumulation:TraceState",
    ],
)  # fmt: skip
def test_what_frameworks_write_is_known(dotted: str) -> None:
    assert find_trust(Global(*dotted.split(":"))) is Trust.KNOWN


@pytest.mark.parametrize(
    "dotted",
    [
        "torch.optim.swa_utils:AveragedModel", "torch.nn.modules.conv:math.floor", "megatron.core.enums:os", "argparse:ArgumentParser",
        "torch.nn.modules.conv:_ntuple", "numpy.random._pickle:os", "collections:abc", "datetime:datetime.now", "argparse:Namespace.x",
        "trl.trainer.sft_config:os", "trl.trainer.sft_trainer:SFTTrainer", "trl.trainer.sft_config:SFTConfig.x", "optax._src.base:apply_updates", "sentence_transformers.training_args:os", "swift.trainers.arguments:os",
        "signal:Signals._convert_", "megatron.core.enums:ModelType._missing_",
    ],
)  # fmt: skip
def test_their_neighbours_are_not(dotted: str) -> None:
    assert find_trust(Global(*dotted.split(":"))) in (Trust.UNLISTED, Trust.DANGEROUS)


def test_members_of_known_enumerations_are_known_by_their_names() -> None:
    assert _ENUMERATIONS <= EXACT
    for of in _ENUMERATIONS:
        module, _, name = of.rpartition(".")
        assert find_trust(Global(module, f"{name}.MEMBER")) is Trust.KNOWN
        for other in ("__class__", "MEMBER.x"):
            assert find_trust(Global(module, f"{name}.{other}")) is not Trust.KNOWN
