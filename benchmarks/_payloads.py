"""Pickles that run something harmless when their framework loads them: each makes the file that it is given,
and nothing else.

``build`` writes them all below a directory. What they call is only ever run by a child process of
benchmarks/pickles.py, or of tests/formats/test_payloads.py.
"""

from __future__ import annotations

import io
import marshal
import os
import pickle
import shlex
import struct
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Loads = str
"""Which loader runs it: ``pickle`` (pickle.load), ``torch`` (torch.load with weights_only=False), ``dcp``
(torch.distributed.checkpoint.load), or one of OTHERS in benchmarks/pickles.py.
"""


class Payload(NamedTuple):
    """One file (for ``dcp`` a directory) that makes ``mark`` when it is loaded."""

    name: str
    loads: Loads
    path: Path
    mark: Path


class Raw(bytes):
    """Opcodes that leave one value on the stack."""


P2, P4, STOP = b"\x80\x02", b"\x80\x04", b"."


def push(value: Any) -> bytes:
    return value if isinstance(value, Raw) else pickle.dumps(value, 2)[2:-1]


def name(dotted: str) -> Raw:
    """A global as GLOBAL names it: ``module:name``."""
    module, _, attribute = dotted.partition(":")
    return Raw(b"c%s\n%s\n" % (module.encode(), attribute.encode()))


def stacked(dotted: str) -> Raw:
    """A global as STACK_GLOBAL names it; its name may have dots."""
    module, _, attribute = dotted.partition(":")
    return Raw(b"".join(b"\x8c%c%s" % (len(t), t.encode()) for t in (module, attribute)) + b"\x93")


def call(func: str | Raw, *args: Any) -> Raw:
    func = func if isinstance(func, Raw) else name(func)
    return Raw(func + b"(" + b"".join(map(push, args)) + b"tR")


def listed(*items: Any) -> Raw:
    return Raw(b"](" + b"".join(map(push, items)) + b"e")


def tupled(*items: Any) -> Raw:
    return Raw(b"(" + b"".join(map(push, items)) + b"t")


def attribute(of: str | Raw, *names: str) -> Raw:
    of = of if isinstance(of, Raw) else name(of)
    for n in names:
        of = call("builtins:getattr", of, n)
    return of


def commands(mark: str) -> Iterator[tuple[str, bytes]]:
    """Ways to start a command."""
    sh, argv = f"touch {shlex.quote(mark)}", ["touch", mark]
    for f in (
        "os:system",
        "posix:system",
        "subprocess:getoutput",
        "subprocess:getstatusoutput",
        "commands:getoutput",
    ):
        yield f, P2 + call(f, sh) + STOP
    for f in ("subprocess:run", "subprocess:call", "subprocess:check_output", "pty:spawn"):
        yield f, P2 + call(f, argv) + STOP
    yield (
        "subprocess:Popen",
        P2 + call(Raw(name("subprocess:Popen")), argv)[:-1] + b"\x81.".replace(b"\x81", b"R"),
    )
    yield "subprocess:Popen by NEWOBJ_EX", P4 + call("subprocess:run", argv) + STOP
    yield "os:popen", P2 + call(attribute(call("os:popen", sh), "read")) + STOP
    yield "os:spawnlp", P2 + call("os:spawnlp", os.P_WAIT, "touch", "touch", mark) + STOP
    yield "os:posix_spawnp", P2 + call("os:waitpid", call("os:posix_spawnp", "touch", argv, {}), 0) + STOP
    yield "torch.utils.collect_env:run", P2 + call("torch.utils.collect_env:run", sh) + STOP
    yield "ctypes", P2 + call(attribute(call("ctypes:CDLL", None), "system"), sh.encode()) + STOP
    yield "by INST", b"(" + push(sh) + b"ios\nsystem\n."
    yield "by OBJ", P2 + b"(" + name("os:system") + push(sh) + b"o."
    yield "by protocol 0", b"cos\nsystem\n(S'" + sh.encode() + b"'\ntR."
    yield (
        "by protocol 0 with escapes",
        b"cos\nsystem\n(S'" + "".join(f"\\x{ord(c):02x}" for c in sh).encode() + b"'\ntR.",
    )
    yield "by STACK_GLOBAL", P4 + call(stacked("os:system"), sh) + STOP
    yield "names out of the memo", P4 + b"\x8c\x06system\x940\x8c\x02os\x940h\1h\0\x93" + tupled(sh) + b"R."
    yield (
        "a long number for a memo entry",
        P2 + b"Vmath\np1\n0Vos\np000000000000000000001\n0g1\nVsystem\n\x93" + b"(V" + sh.encode() + b"\ntR.",
    )
    yield "before damage", P2 + call("os:system", sh) + b"0\xff"


def code(mark: str) -> Iterator[tuple[str, bytes]]:
    """Ways to run Python code."""
    expression, statement = f"open({mark!r}, 'w').close()", f"open({mark!r}, 'w').close()\n"
    for f in ("builtins:eval", "builtins:exec", "__builtin__:eval"):
        yield f, P2 + call(f, expression) + STOP
    compiled = call("builtins:compile", expression, "x", "exec")
    yield "builtins:compile", P2 + call("builtins:exec", compiled) + STOP
    yield (
        "marshal and FunctionType",
        P2
        + call(call("types:FunctionType", call("marshal:loads", _code(expression)), call("builtins:globals")))
        + STOP,
    )
    yield "runpy:_run_code", P2 + call("runpy:_run_code", compiled, {}) + STOP
    yield "timeit:timeit", P2 + call("timeit:timeit", expression, "pass", number_is_default(), 1) + STOP
    yield "timeit:main", P2 + call("timeit:main", ["-n1", "-r1", expression]) + STOP
    yield "cProfile:run", P2 + call("cProfile:run", statement) + STOP
    yield "profile:run", P2 + call("profile:run", statement) + STOP
    yield "trace:Trace", P2 + call(attribute(call("trace:Trace", 0, 0), "run"), statement) + STOP
    yield (
        "code:InteractiveInterpreter",
        P2 + call(attribute(call("code:InteractiveInterpreter"), "runcode"), compiled) + STOP,
    )
    yield "bdb:Bdb", P2 + call(attribute(call("bdb:Bdb"), "run"), statement) + STOP
    yield "numpy runstring", P2 + call("numpy.testing._private.utils:runstring", statement, {}) + STOP
    yield "numpy f2py", P2 + call("numpy.f2py.crackfortran:myeval", expression, {}, {}) + STOP
    yield (
        "torch execWrapper",
        P2 + call("torch.jit.unsupported_tensor_ops:execWrapper", statement, {}, {}) + STOP,
    )
    yield "torch.fx source", P2 + call("torch.fx.graph_module:_exec_with_source", statement, {}) + STOP
    yield (
        "typing:ForwardRef",
        P2 + call("typing:_eval_type", call("typing:ForwardRef", expression), {"x": 1}, {}) + STOP,
    )
    yield (
        "sympy",
        P2 + call("sympy.core.sympify:sympify", f"__import__('pathlib').Path({mark!r}).touch()") + STOP,
    )
    yield "tornado", P2 + call("tornado.util:exec_in", statement, {}) + STOP
    yield "attrs", P2 + call("attr._make:_compile_and_eval", statement, {}) + STOP
    yield (
        "logging.config",
        P2
        + call("logging.config:_resolve", "os.system")
        + b"0"
        + call(call("logging.config:_resolve", "os.mkdir"), mark)
        + STOP,
    )


def number_is_default() -> Raw:
    return name("time:perf_counter")


def _code(source: str) -> bytes:
    return marshal.dumps(compile(source, "x", "exec"))


def indirect(mark: str) -> Iterator[tuple[str, bytes]]:
    """Ways to reach a function without naming it."""
    sh = f"touch {shlex.quote(mark)}"
    for f in (
        "random:_os.system",
        "logging:os.system",
        "torch.serialization:os.system",
        "tempfile:_os.system",
        "shutil:os.system",
        "glob:os.system",
    ):
        yield f, P4 + call(stacked(f), sh) + STOP
    yield (
        "sys.modules",
        P4
        + call(call("operator:attrgetter", "system"), call(stacked("sys:modules.get"), "os"))
        + b"0"
        + _mkdir(mark)
        + STOP,
    )
    yield "getattr of a module", P2 + call(attribute("torch:serialization", "os", "system"), sh) + STOP
    yield "getattr of a private module", P2 + call(attribute("random:_os", "system"), sh) + STOP
    yield "pydoc:locate", P2 + call(call("pydoc:locate", "os.system"), sh) + STOP
    yield "pkgutil:resolve_name", P2 + call(call("pkgutil:resolve_name", "os:system"), sh) + STOP
    yield (
        "importlib and attrgetter",
        P2
        + call(call("operator:attrgetter", "system"), call("importlib:import_module", "os"))
        + b"0"
        + _mkdir(mark)
        + STOP,
    )
    yield (
        "methodcaller",
        P2 + call(call("operator:methodcaller", "system", sh), call("importlib:import_module", "os")) + STOP,
    )
    yield "partial", P2 + call(call("functools:partial", name("os:system"), sh)) + STOP
    yield "map", P2 + call("builtins:list", call("builtins:map", name("os:system"), [sh])) + STOP
    yield "starmap", P2 + call("builtins:list", call("itertools:starmap", name("os:system"), [(sh,)])) + STOP
    yield (
        "reduce",
        P2
        + call("functools:reduce", name("builtins:getattr"), listed(name("random:_os"), "system"))
        + b"0"
        + _mkdir(mark)
        + STOP,
    )
    yield (
        "a thread",
        P2 + call(attribute(call("threading:Thread", None, name("os:system"), None, (sh,)), "run")) + STOP,
    )
    yield (
        "atexit",
        P2 + call("atexit:register", name("os:system"), sh) + b"0" + call("atexit:_run_exitfuncs") + STOP,
    )
    yield (
        "an extension code",
        P2 + call("copyreg:add_extension", "os", "system", 240) + b"0" + call(Raw(b"\x82\xf0"), sh) + STOP,
    )
    yield (
        "copyreg:_reconstructor",
        P2
        + call("copyreg:_reconstructor", name("logging:FileHandler"), name("logging:FileHandler"), mark)
        + STOP,
    )
    yield (
        "_rebuild_from_type_v2",
        P2
        + call(
            "torch._tensor:_rebuild_from_type_v2", name("os:mkdir"), name("builtins:int"), tupled(mark), None
        )
        + STOP,
    )
    made = tupled(f"__import__('os').mkdir({mark!r})")
    yield (
        "_rebuild_from_type_v2, no list",
        P2
        + call("torch._tensor:_rebuild_from_type_v2", name("sympy:sympify"), name("builtins:int"), made, None)
        + STOP,
    )
    yield (
        "a generator's constructor",
        P2
        + call(
            "numpy.random._pickle:__generator_ctor",
            f"__import__('os').mkdir({mark!r})",
            name("sympy:sympify"),
        )
        + STOP,
    )
    yield "a path's method", P2 + call(attribute(call("pathlib:PosixPath", mark), "touch")) + STOP
    yield (
        "a path's method by its class",
        P4 + call(stacked("pathlib:Path.touch"), call("pathlib:PosixPath", mark)) + STOP,
    )


def _mkdir(mark: str) -> bytes:
    return call(attribute(call("importlib:import_module", "os"), "mkdir"), mark)


def files(mark: str) -> Iterator[tuple[str, bytes]]:
    """Ways to write a file."""
    opened = (
        "builtins:open",
        "_io:open",
        "io:open",
        "codecs:open",
        "_io:FileIO",
        "zipfile:ZipFile",
        "tarfile:open",
        "gzip:open",
        "bz2:BZ2File",
        "lzma:LZMAFile",
    )
    for f in opened:
        yield f, P2 + call(f, mark, "w") + STOP
    for f in ("logging:FileHandler", "os:mkdir", "os:makedirs", "sqlite3:connect"):
        yield f, P2 + call(f, mark) + STOP
    yield "shutil:copyfile", P2 + call("shutil:copyfile", "/dev/null", mark) + STOP
    yield "os:symlink", P2 + call("os:symlink", "/dev/null", mark) + STOP
    yield "distutils", P2 + call("distutils.file_util:write_file", mark, ["x"]) + STOP
    yield "numpy:savetxt", P2 + call("numpy:savetxt", mark, [1.0]) + STOP
    yield "numpy:memmap", P2 + call("numpy:memmap", mark, "u1", "w+", 0, 8) + STOP
    yield "torch:save", P2 + call("torch:save", 1, mark) + STOP
    yield "from_file", P4 + call(stacked("torch:UntypedStorage.from_file"), mark, True, 8) + STOP
    yield "logging by its name alone", P2 + call("logging:FileHandler", mark, "w") + STOP


def nested(mark: str) -> Iterator[tuple[str, bytes]]:
    """Pickles in pickles, and what comes behind much padding."""
    bad = P2 + call("os:mkdir", mark) + STOP
    yield "pickle:loads", P2 + call("pickle:loads", Raw(b"B" + struct.pack("<I", len(bad)) + bad)) + STOP
    yield "_pickle:loads", P2 + call("_pickle:loads", Raw(b"B" + struct.pack("<I", len(bad)) + bad)) + STOP
    yield "torch bytes", hidden(legacy(bad))
    yield "torch bytes, a zip", hidden(archive(bad))
    yield "torch bytes, a zip after a line", hidden(archive(bad, "PK\n"))
    yield "torch bytes in torch bytes", hidden(legacy(hidden(legacy(hidden(legacy(hidden(legacy(bad))))))))
    yield (
        "torch bytes made by a call",
        P2
        + call(
            "torch.storage:_load_from_bytes",
            call("_codecs:encode", legacy(bad).decode("latin-1"), "iso8859-1"),
        )
        + STOP,
    )
    data = legacy(bad)
    yield (
        "torch bytes as a bytearray",
        P2
        + call(
            "torch.storage:_load_from_bytes",
            call("builtins:bytearray", Raw(b"B" + struct.pack("<I", len(data)) + data)),
        )
        + STOP,
    )
    yield "behind empty opcodes", P2 + b"N0" * 2_600_000 + bad[2:]
    yield "behind a storm of memo entries", P2 + b"Nr\0\0\0\0" * 1 + b"q\0" * 5_100_000 + b"0" + bad[2:]
    yield (
        "behind long strings",
        P2 + (b"X" + struct.pack("<I", 1 << 20) + b"x" * (1 << 20) + b"0") * 4 + bad[2:],
    )


def hidden(inner: bytes) -> bytes:
    """A pickle that hands bytes to torch.load."""
    return (
        P2 + call("torch.storage:_load_from_bytes", Raw(b"B" + struct.pack("<I", len(inner)) + inner)) + STOP
    )


def parts() -> list[bytes]:
    """The five pickles of an empty file in torch's old format."""
    info = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    return [pickle.dumps(v, 2) for v in (0x1950A86A20F9469CFC6C, 1001, info, {}, [])]


def legacy(data: bytes, at: int = 3) -> bytes:
    five = parts()
    five[at] = data
    return b"".join(five)


def archive(data: bytes, top: str = "archive", **more: bytes) -> bytes:
    """A file as torch.save writes it, with another pickle in it."""
    import torch

    out = io.BytesIO()
    with torch.serialization._open_zipfile_writer_buffer(out) as writer:  # noqa: SLF001  # what torch.save itself uses
        for record, content in {"data.pkl": data, "byteorder": b"little", **more}.items():
            writer.write_record(record, content, len(content))
    made = out.getvalue()
    return made if top == "archive" else _renamed(made, top)


def _renamed(made: bytes, top: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(made)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            new.writestr(zipfile.ZipInfo(info.filename.replace("archive/", f"{top}/", 1)), old.read(info))
    return out.getvalue()


def tar(**changed: bytes) -> bytes:
    """A file of torch 0.1 with other members."""
    zero = pickle.dumps(0, 2)
    members = {
        "sys_info": pickle.dumps({"protocol_version": 1000, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}, 2),
        "pickle": pickle.dumps({}, 2), "tensors": zero, "storages": zero + pickle.dumps([], 2),
    }  # fmt: skip
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as t:
        for n, data in {**members, **changed}.items():
            info = tarfile.TarInfo(n)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


def two_faced(inner: bytes) -> bytes:
    """A tar archive that is the bytes of one harmless pickle as well."""
    head = P2 + b"B" + struct.pack("<I", len(inner) - 7)
    first = bytearray(inner[:512])
    first[: len(head)] = head
    first[148:156] = b"%06o\0 " % (sum(first[:148]) + 256 + sum(first[156:]))
    return bytes(first) + inner[512:] + STOP


def torch_files(mark: str) -> Iterator[tuple[str, bytes]]:
    """Where torch.load looks for pickles."""
    bad = P2 + call("os:mkdir", mark) + STOP
    yield "archive", archive(bad)
    yield "archive with a harmless pickle beside it", archive(bad, **{"other.pkl": pickle.dumps({}, 2)})
    for at, what in enumerate(("protocol", "sizes", "object", "keys"), 1):
        yield f"old format, {what}", legacy(bad, at)
    yield "plain pickle", bad
    for member in ("pickle", "storages", "tensors"):
        yield f"tar, {member}", tar(**{member: bad})
    yield "tar that looks like a pickle", two_faced(tar(storages=bad))
    made = tupled(f"__import__('os').mkdir({mark!r})")
    renamed = call(
        "torch.tensor:_rebuild_from_type_v2", name("sympy:sympify"), name("builtins:int"), made, None
    )
    yield "archive, a name that torch renames", archive(P2 + renamed + STOP)
    yield (
        "archive, a name with Storage in it",
        archive(P2 + call("os:mkdir", mark) + b"0" + name("torch:FloatStorage") + STOP),
    )
    yield "archive behind empty opcodes", archive(P2 + b"N0" * 2_600_000 + bad[2:])


class Does:
    """Something that is pickled as a call."""

    def __init__(self, func: Any, *args: Any) -> None:
        self.call = func, args

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def index_with(path: Path, extra: Any) -> bytes:
    """The .metadata of a good checkpoint, with an attribute more."""
    import torch.distributed.checkpoint as dist

    read = dist.FileSystemReader(path.parent).read_metadata()
    read.mcore_data = extra
    return pickle.dumps(read, 4)


def dcp(directory: Path, make: Callable[[Path], bytes], metadata: bool = True) -> None:
    """A checkpoint of torch.distributed.checkpoint whose index, or one object of it, is such a pickle."""
    import torch
    import torch.distributed.checkpoint as dist

    state = {"w": torch.arange(4.0), "step": 7}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dist.save(state, checkpoint_id=directory, no_dist=True)
    index = directory / ".metadata"
    if metadata:
        index.write_bytes(make(index))
        return
    read = dist.FileSystemReader(directory).read_metadata()
    (key,) = (k for k in read.storage_data if k.fqn == "step")
    info = read.storage_data[key]
    path = directory / info.relative_path
    data, new = path.read_bytes(), make(path)
    moved = len(new) - info.length
    path.write_bytes(data[: info.offset] + new + data[info.offset + info.length :])
    for k, other in read.storage_data.items():
        if k is not key and other.offset > info.offset:
            other.offset += moved
    info.length = len(new)
    index.write_bytes(pickle.dumps(read, 4))


def build(directory: Path) -> list[Payload]:
    """Every payload, as files below ``directory``, which must be of this run alone."""
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        from _other_payloads import MAKERS, other_payloads
    finally:
        sys.path.pop(0)
    out = list[Payload]()
    for loads, suffix, makers in (
        ("pickle", ".pkl", (commands, code, indirect, files, nested)),
        ("torch", ".pt", (torch_files,)),
        *((loads, suffix, (make,)) for loads, suffix, make in MAKERS),
    ):
        for make in makers:
            for n, what in enumerate(title for title, _ in make("x")):
                home = directory / f"{make.__name__}-{n:02d}"
                home.mkdir(parents=True)
                (home / f"file{suffix}").write_bytes(list(make(str(home / "mark")))[n][1])
                out.append(Payload(what, loads, home / f"file{suffix}", home / "mark"))
    out += _dcp_payloads(directory)
    out += other_payloads(directory)
    return out


def _dcp_payloads(directory: Path) -> Iterator[Payload]:
    from sympy import sympify  # torch needs it

    def bad(mark: Path, _: Path | None = None) -> bytes:
        return bytes(P2 + call("os:mkdir", str(mark)) + STOP)

    def text(mark: Path, _: Path | None = None) -> bytes:
        return b"cos\nmkdir\n(V" + str(mark).encode() + b"\ntR."

    cases: tuple[tuple[str, bool, Callable[[Path, Path], bytes]], ...] = (
        (".metadata", True, lambda mark, path: index_with(path, Does(os.mkdir, str(mark)))),
        (
            ".metadata, no list",
            True,
            lambda mark, path: index_with(path, Does(sympify, f"__import__('os').mkdir({str(mark)!r})")),
        ),
        ("an object, archive", False, lambda mark, _: archive(bad(mark))),
        ("an object, old format", False, lambda mark, _: legacy(bad(mark))),
        ("an object, plain pickle", False, bad),
        ("an object, protocol 0", False, text),
    )
    for n, (what, metadata, make) in enumerate(cases):
        home = directory / f"dcp-{n:02d}"
        home.mkdir()
        mark = home / "mark"
        dcp(home / "step-1", lambda path, make=make, mark=mark: make(mark, path), metadata)  # type: ignore[misc]
        yield Payload(f"dcp: {what}", "dcp", home / "step-1", mark)
