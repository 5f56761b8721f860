"""Names whose call runs commands or code, imports, opens, writes or deletes files, talks to other machines,
or unpickles something else.

At least what picklescan 1.0.5, fickling 0.1.12 and modelscan 0.8.8 know (tests/formats/test_pickle_lists.py),
apart from what real checkpoints hold.
A name that is in no list is not taken for harmless: _globals.py says what happens to it.
"""

from __future__ import annotations

import re
import sys

from ckpt_tools.formats.pickles.known_globals import read_names

THROUGH = read_names("""
    : os posix nt sys subprocess _posixsubprocess socket _socket shutil pty runpy importlib ctypes _ctypes
        builtins __builtin__ __builtins__ pickle _pickle
""")
"""Modules that are dangerous wherever they are reached: also as an attribute of another module, or at the end
of its dotted name.
"""
DEEP = read_names("os posix nt sys subprocess builtins __builtin__ __builtins__")
MODULES = THROUGH | read_names("""
    # Python
    : _aix_support _frozen_importlib _frozen_importlib_external _imp _io _operator _osx_support _pyrepl
        _signal _sqlite3 _thread antigravity asynchat asyncio asyncore atexit bdb cProfile cgi cgitb code
        codeop commands compile compileall curses dbm difflib distutils doctest ensurepip eval exec
        faulthandler filecmp fileinput ftplib functools gc glob http httplib idlelib imaplib imp inspect io
        lib2to3 linecache logging mailbox mailcap marshal mmap modulefinder multiprocessing netrc nntplib
        ntpath operator pdb pip pkgutil platform popen2 poplib posixpath profile py_compile pyclbr pydoc
        pydoc_data readline resource rlcompleter sched select selectors shelve signal site smtpd smtplib
        socketserver sqlite3 ssl symtable sysconfig syslog tarfile telnetlib tempfile threading timeit tkinter
        tokenize tracemalloc turtle types unittest urllib urllib2 uuid venv webbrowser winreg _winreg wsgiref
        xml xmlrpc xmlrpclib zipapp zipfile zipimport
    # packages
    : Cython IPython _distutils_hack _pytest aiohttp boto3 botocore bpython celery cffi cloudpickle conda dill
        execnet fabric fire fsspec huggingface_hub invoke ipykernel jinja2 joblib mako nose numba paramiko
        past pexpect pkg_resources plumbum psutil ptyprocess py pytest pyximport requests ruamel s3fs
        setuptools sh smart_open urllib3 wheel yaml
""")
"""Top-level modules of which every name is dangerous, but for PLAIN and what is known."""
PREFIXES = read_names("""
    : concurrent.futures contextvars.Context hydra.utils hydra._internal keras.models keras.saving
        keras.src.saving logging.config pandas.io pandas.eval pandas.core.computation pandas.HDFStore
        pandas.DataFrame.eval pandas.DataFrame.query scipy.io sklearn.externals six.moves.builtins
        test.support test.libregrtest test.regrtest trace.Trace trace.main tensorflow.io
        tensorflow.keras.models tensorflow.load_library tensorflow.load_op_library tensorflow.numpy_function
        tensorflow.py_function tensorflow.saved_model transformers.dynamic_module_utils transformers.pipeline
        transformers.pipelines deepspeed.launcher deepspeed.ops.op_builder future.utils.exec_
        typing.ForwardRef typing.get_type_hints weakref.finalize
    numpy.: f2py distutils ctypeslib testing lib.npyio lib._npyio_impl lib.format lib._format_impl
        lib._datasource lib._utils_impl DataSource compat.py3k lib.utils
    torch.: _C.PyTorchFileReader _C.PyTorchFileWriter _C._jit _C.import_ir_module _dynamo _export _functorch
        _inductor _utils_internal _weights_only_unpickler classes compile cuda.memory
        distributed.checkpoint.format_utils distributed.checkpoint.state_dict_loader
        distributed.distributed_c10d distributed.elastic distributed.launch distributed.launcher
        distributed.nn.jit distributed.rpc distributed.run export func fx hub jit multiprocessing onnx ops
        package profiler serialization testing
    torch.utils.: _config_module _cpp_extension_versioner _pytree benchmark bottleneck checkpoint collect_env
        cpp_extension data.dataloader data.datapipes data._utils hipify mobile_optimizer model_zoo tensorboard
""")
"""The beginnings of dotted names."""
NAMES = read_names("""
    builtins.: eval exec compile __import__ open input breakpoint execfile file apply globals locals vars
        delattr setattr help exit quit
    # what an EXT opcode stands for, how things are pickled
    copyreg.: add_extension pickle constructor
    codecs.: open EncodedFile StreamReaderWriter StreamRecoder
    gzip.: open GzipFile
    bz2.: open BZ2File
    lzma.: open LZMAFile
    dataclasses.: make_dataclass _create_fn
    profile.: run runctx Profile main
    numpy.: load loadtxt genfromtxt fromfile fromregex memmap save savez savez_compressed savetxt
        ndarray.tofile ndarray.dump core.multiarray.fromfile _core.multiarray.fromfile core.records.fromfile
        _core.records.fromfile rec.fromfile core.memmap.memmap _core.memmap.memmap apply_along_axis
        apply_over_axes fromfunction frompyfunc piecewise vectorize
    torch.: load save from_file UntypedStorage.from_file storage.UntypedStorage.from_file
        TypedStorage.from_file storage.TypedStorage.from_file vmap cond _sync torch_version.subprocess
""")
_BEGINNINGS = NAMES | PREFIXES
PLAIN = read_names("""
    types.: MappingProxyType GenericAlias NoneType UnionType EllipsisType NotImplementedType
    : functools.partial inspect.Parameter inspect.Signature inspect._empty inspect._ParameterKind io.StringIO
        _io.StringIO
    tempfile.: SpooledTemporaryFile.softspace
    {operator,_operator}.: add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ xor
        not_ matmul getitem index truth
""")
"""Of dangerous modules, names that whole pickled models hold: classes and arithmetic. They are in no list
either.
"""
DUNDER = re.compile(r"__\w+__")
_BARE = read_names("""
    __: builtins__ globals__ subclasses__ import__ bases__ mro__ code__ loader__ spec__ getattribute__ dict__
        base__ closure__
""")
_ALIASES = {"np": "numpy", "pd": "pandas", "tf": "tensorflow", "sp": "subprocess", "mp": "multiprocessing"}
_LONGEST = 16


def dangerous(modules: list[str], names: list[str]) -> bool:
    """Whether a name of a module is one of these, or reaches one of these through another module."""
    return (
        _runs([*modules, *names])
        or not DEEP.isdisjoint(modules[modules[0] == "builtins" :])
        or not _BARE.isdisjoint(names)
        or "__main__" in modules[1:]  # a package's program: importing it runs it
        or (len(names) > 1 and any(map(DUNDER.fullmatch, names)))
        # a method of what is known: it opens, writes or deletes
        or (modules[0] in ("pathlib", "_io", "io") and len(names) > 1)
        or _reaches(names)
    )


def _runs(parts: list[str]) -> bool:
    full = ".".join(parts[:_LONGEST])
    if full in PLAIN:
        return False
    prefixes = {".".join(parts[:n]) for n in range(1, min(len(parts), _LONGEST) + 1)}
    if parts[0] == "builtins":  # its classes and plain functions are harmless by themselves
        return not prefixes.isdisjoint(NAMES)
    return parts[0] in MODULES or full.startswith("pandas.read_") or not prefixes.isdisjoint(_BEGINNINGS)


def _reaches(names: list[str]) -> bool:
    """Whether an attribute is a module that runs code or leads to one (``random._os``)."""
    for i, name in enumerate(names[:_LONGEST]):
        bare = name.lstrip("_")
        module = _ALIASES.get(bare, bare)
        last = i == len(names) - 1
        if bare in THROUGH or (
            not last
            and (name in THROUGH or module in sys.stdlib_module_names or name in sys.stdlib_module_names)
        ):
            return True
        if not last and _runs([module, *names[i + 1 :]]):
            return True
    return len(names) > _LONGEST
