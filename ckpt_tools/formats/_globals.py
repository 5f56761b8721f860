"""What to think of the names in a pickle: ``allowed``, ``dangerous`` or ``needs-trust``.

ALLOWED is what ``torch.load(weights_only=True)`` of torch 2.13 lets through (torch/_weights_only_unpickler.py, _get_allowed_globals).
The dangerous ones are names whose call runs commands, code, imports or transfers, and modules from which such a name is reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckpt_tools.codes import finding
from ckpt_tools.formats._stubs import Global
from ckpt_tools.model import Finding


def _words(prefix: str, names: str) -> frozenset[str]:
    return frozenset(prefix + n for n in names.split())


_TYPES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
ALLOWED: frozenset[str] = (
    _words("", "_codecs.encode builtins.bytearray builtins.complex builtins.set collections.Counter collections.OrderedDict")
    | _words("torch.", "Size Tensor device nn.parameter.Parameter serialization._get_layout storage.TypedStorage storage.UntypedStorage")
    | _words("torch._utils._rebuild_", "device_tensor_from_cpu_tensor device_tensor_from_numpy meta_tensor_no_storage nested_tensor parameter")
    | _words("torch._utils._rebuild_", "parameter_with_state qtensor sparse_tensor tensor tensor_v2 tensor_v3 wrapper_subclass")
    | _words("torch.", "_tensor._rebuild_from_type_v2 ComplexDoubleStorage ComplexFloatStorage cuda.ComplexDoubleStorage cuda.ComplexFloatStorage")
    | _words("torch.", "QInt32Storage QInt8Storage QUInt2x4Storage QUInt4x2Storage QUInt8Storage")
    | _words("torch.", "bfloat16 bits16 bits1x8 bits2x4 bits4x2 bits8 bool complex128 complex32 complex64 float16 float32 float64")
    | _words("torch.float", "4_e2m1fn_x2 8_e4m3fn 8_e4m3fnuz 8_e5m2 8_e5m2fnuz 8_e8m0fnu")
    | _words("torch.int", "1 2 3 4 5 6 7 8 16 32 64")
    | _words("torch.uint", "1 2 3 4 5 6 7 8 16 32 64")
    | _words("torch.", "qint32 qint8 quint2x4 quint4x2 quint8 per_channel_affine per_channel_affine_float_qparams per_channel_symmetric")
    | _words("torch.", "per_tensor_affine per_tensor_symmetric")
    | frozenset(f"torch.{d}{t}{k}" for d in ("", "cuda.") for t in _TYPES for k in ("Storage", "Tensor"))
    | frozenset(f"torch.{d}sparse.{t}Tensor" for d in ("", "cuda.") for t in _TYPES if t != "Bool")
)

_PYTHON_2 = {"__builtin__": "builtins", "__builtins__": "builtins", "copy_reg": "copyreg"}

# Modules of which every name is dangerous, also when a dotted name goes through them: "torch" "os.system".
_THROUGH = _words("", "os posix nt sys subprocess socket shutil pty runpy importlib ctypes _ctypes builtins __builtin__ __builtins__ pickle _pickle")
_DEEP = _words("", "os posix nt sys subprocess builtins __builtin__ __builtins__")  # also as a part of a module's name: six.moves.builtins
_MODULES = _THROUGH | _words(
    "",
    "aiohttp asyncio bdb bpython cffi cgi code codeop commands cProfile distutils doctest ensurepip fabric ftplib gc http httplib idlelib imp"
    " imaplib lib2to3 linecache marshal mmap multiprocessing nntplib ntpath paramiko pdb pip pkgutil platform popen2 poplib posixpath"
    " pydoc pydoc_data requests setuptools signal smtplib socketserver sqlite3 ssl sysconfig telnetlib tempfile timeit"
    " urllib urllib2 urllib3 venv webbrowser winreg _winreg xmlrpc xmlrpclib zipimport",
)
_PACKAGES = _words(
    "",
    "concurrent.futures torch.hub torch.package torch.utils.cpp_extension torch.utils.bottleneck torch.utils.collect_env torch.utils.model_zoo"
    " torch.utils._config_module torch.utils.data.datapipes torch.testing._internal torch.distributed.run torch.distributed.launcher"
    " torch.multiprocessing torch._inductor torch._dynamo torch.jit.unsupported_tensor_ops torch.onnx numpy.f2py numpy.distutils"
    " numpy.ctypeslib numpy.testing logging.config profile.run profile.runctx profile.Profile test.support trace.Trace uuid._get_command_stdout",
)
_NAMES = (
    _words("builtins.", "eval exec compile __import__ open input breakpoint execfile file apply globals locals vars delattr setattr help exit quit")
    | _words("operator.", "attrgetter methodcaller call")
    | _words("copyreg.", "add_extension pickle constructor")  # what an EXT opcode stands for, how things are pickled
    | _words("torch.", "load serialization.load jit.load jit.script jit.CompilationUnit ops.load_library classes.load_library compile")
    | _words("", "numpy.load numpy.fromfile numpy.memmap numpy.lib.npyio.load numpy.save numpy.savez io.open io.FileIO io.open_code codecs.open")
    | _words("", "_io.open _io.FileIO _io.open_code types.FunctionType types.CodeType types.MethodType types.LambdaType joblib.load dill.loads")
    | _words("torch.", "save serialization.save from_file UntypedStorage.from_file storage.UntypedStorage.from_file")
    | _words("numpy.", "ndarray.tofile core.multiarray.fromfile _core.multiarray.fromfile")
    | _words("", "dill.load cloudpickle.load cloudpickle.loads pandas.read_pickle pandas.eval logging.FileHandler pathlib.Path.unlink")
    | _words("", "dill._dill._eval_repr functools.reduce shelve.open dbm.open yaml.load yaml.unsafe_load inspect.getattr_static")
)
_RUNS = _NAMES | _PACKAGES
# Plain classes in dangerous modules that real checkpoints name: enums in args, nested tensors' dimensions, modules wrapped by torch.compile.
_HARMLESS = (
    _words("", "signal.Signals signal.Handlers urllib.parse.ParseResult urllib.parse.SplitResult torch._dynamo.decorators._DimRange")
    | _words("torch._dynamo.eval_frame.", "OptimizedModule OptimizeContext")
    | _words("torch._dynamo.convert_frame.", "CatchErrorsWrapper ConvertFrame ConvertFrameAssert ConvertFrameBox")
    | _words("torch._dynamo.", "hooks.Hooks repro.after_dynamo.WrapBackendDebug")
)
_DUNDER = _words("__", "builtins__ globals__ subclasses__ import__ bases__ mro__ code__ loader__ spec__ getattribute__ dict__ base__ closure__")


def verdict(name: Global) -> str:
    """``allowed``, ``dangerous`` or ``needs-trust`` for one global."""
    modules = name.module.split(".")
    modules[0] = _PYTHON_2.get(modules[0], modules[0])
    parts = name.name.split(".")
    full = ".".join(modules + parts)
    if full in ALLOWED:
        return "allowed"
    if full in _HARMLESS:
        return "needs-trust"
    prefixes = {".".join((modules + parts)[:n]) for n in range(1, min(len(modules) + len(parts), 16) + 1)}
    if not prefixes.isdisjoint(_RUNS) or not _DUNDER.isdisjoint(parts) or not _THROUGH.isdisjoint(parts):
        return "dangerous"
    if modules[0] == "builtins":  # its classes and plain functions are harmless by themselves
        return "needs-trust"
    return "dangerous" if modules[0] in _MODULES or not _DEEP.isdisjoint(modules) else "needs-trust"


def judge(seen: Mapping[Global, int], *, harmless: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Findings for the globals of a pickle: one ``unsafe-pickle`` for each dangerous one (at most eight), one ``needs-trust`` for the others.

    Modules that start with ``harmless`` are not judged: the classes of a TorchScript archive are its own and no Python.
    """
    dangerous, trust = [], []
    for name, offset in seen.items():
        if not name.module.startswith(harmless):
            what = verdict(name)
            if what == "dangerous":
                dangerous.append((name, offset))
            elif what == "needs-trust":
                trust.append((name, offset))
    for name, offset in dangerous[:8]:
        yield finding("unsafe-pickle", f"the pickle names {str(name)[:120]}, which runs code or reaches beyond the file", offset=offset)
    if trust:
        some = ", ".join(str(n)[:80] for n, _ in trust[:4]) + (f" and {len(trust) - 4} more" if len(trust) > 4 else "")
        yield finding("needs-trust", f"the pickle names {some}", offset=trust[0][1])
