"""Engines read many files: executors of ``concurrent.futures`` with workers here or on other machines.

``--scheduler`` names an engine elsewhere: the address or the scheduler file of Dask distributed, or ``mpi``.
Its package is imported only then.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ckpt_tools import __version__
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.storage import Stopped, stalls
from ckpt_tools.storage.stalls import Threads

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ckpt_tools.model.selection import StoreOptions

CONNECT = 15.0
"""Seconds within which a scheduler must have answered."""
GRACE = 60.0
"""Seconds without any worker after which an engine is given up."""
RETRIES = 2
"""How often Dask repeats work that raised an error; work lost with a worker it repeats anyway."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a program from outside: a parent's handlers are not for its copies."""
_COLLECTED = 50_000
"""Objects that a copy makes before it collects cycles: a file makes thousands, without any cycle."""
MPIRUN = (
    "mpirun -n 4 python -P -m mpi4py.futures -m ckpt_tools verify ROOT --scheduler mpi (without -P before"
    " Python 3.11)"
)


class Engine(Struct):
    """An executor, and facts that its interface does not tell."""

    executor: Executor
    name: str
    hint: str = "start it again and repeat the command, or leave out --scheduler"
    width: Callable[[], int] = field(default=lambda: os.cpu_count() or 1)  # calls at once; 0 without a worker
    here: bool = False  # workers see the same files: what they leave out is read once it is asked for

    def failed(self, error: BaseException) -> CannotLook:
        """Return an engine's error for the user."""
        name = type(error).__name__
        if isinstance(error, ImportError) or "deserialization" in str(error):
            why = str(error.__cause__ or error).partition("\n")[0]
            hint = f"install ckpt-tools {__version__} on all its machines, with the same Python and packages"
            return CannotLook(f"{self.name} or a worker of it cannot import ckpt-tools: {why}", hint)
        if name == "CancelledError":
            return CannotLook(f"{self.name} is gone, and with it the work it had been given", self.hint)
        return CannotLook(f"{self.name} could not do its work: {name}: {error}", self.hint)


@contextmanager
def engine(scheduler: str | None) -> Iterator[Engine | None]:
    """Yield the engine that ``--scheduler`` names, or None for threads. Raise UsageError and CannotLook."""
    if scheduler in (None, "", "threads"):
        yield None
    elif scheduler == "mpi":
        yield from _connect_mpi()
    else:
        yield from _connect_dask(_read_address(scheduler))


@contextmanager
def threads_here(jobs: int) -> Iterator[Engine]:
    """Yield an engine of threads, for files in a store, on which a thread waits most of the time."""
    pool, done = Threads(jobs), False
    try:
        yield Engine(pool, "this machine", width=lambda: jobs, here=True)
        done = True
    finally:
        pool.close(wait=done)


@contextmanager
def copies_here(jobs: int) -> Iterator[Engine]:
    """Yield an engine of copies of this process, for small files. Raise Stopped beside other threads."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import active_children, get_context

    if not is_single_threaded():
        raise Stopped
    others = set(active_children())
    pool = ProcessPoolExecutor(jobs, get_context("fork"), _begin_copy)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # no handler of ours runs in a copy
    try:
        pool.submit(abs, 0)  # the first call makes all copies
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    copies, done = set(active_children()) - others, False
    try:
        yield Engine(pool, "this machine", width=lambda: jobs, here=True)
        done = True
    finally:
        for copy in () if done else copies:  # one may hang in a read
            copy.kill()
        pool.shutdown(wait=done, cancel_futures=True)
        for copy in () if done else copies:
            copy.join(2)


def is_single_threaded() -> bool:
    """Return True if this process has one thread only, counting threads outside Python."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _begin_copy() -> None:
    """Prepare a copy to read for its parent: without its handlers and limits, and to end when it ends."""
    import resource
    from multiprocessing import parent_process

    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is our parent's business
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    stalls.drop_limit()
    gc.freeze()  # what this process was given lives as long as it does
    gc.set_threshold(_COLLECTED)
    parent = parent_process()
    assert parent is not None  # noqa: S101 - for the type checker: a copy has one

    def end_with_parent() -> None:
        parent.join()
        os._exit(0)

    Thread(target=end_with_parent, daemon=True).start()


def require_nothing_untold(roots: Sequence[str], stores: StoreOptions | None) -> None:
    """Raise UsageError if workers, with an environment of their own, might read another store."""
    from ckpt_tools.storage.signed import find_query
    from ckpt_tools.storage.stores import mounts

    given = mounts.get_options() if stores is None else stores
    if any(given.of(root) or find_query(root) for root in roots):
        raise UsageError(
            "the workers of --scheduler are told neither options of stores nor what signs a URL",
            "set the library's variables where the workers start (AWS_ENDPOINT_URL, AWS_PROFILE …), or leave"
            " out --scheduler",
        )


def _read_address(scheduler: str) -> str:
    if not scheduler.startswith("file:"):
        return scheduler
    import json

    path = scheduler.removeprefix("file:").removeprefix("//")
    hint = "'dask scheduler --scheduler-file FILE' writes it, where this machine sees FILE"
    try:
        with open(path, encoding="utf-8") as f:
            return str(json.load(f)["address"])
    except OSError as e:
        raise CannotLook(f"the scheduler file {path!r} cannot be read: {e.strerror}", hint) from e
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise UsageError(f"{path!r} is not a scheduler file of Dask: it names no address", hint) from e


def _connect_dask(address: str) -> Iterator[Engine]:
    try:
        import distributed
    except ImportError:
        hint = "pip install 'ckpt-tools[dask]', here and on the workers"
        raise UsageError("--scheduler with an address needs Dask distributed", hint) from None
    import logging

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what goes wrong is said once, by us
    hint = f"check that 'dask scheduler' runs at {address}; without --scheduler this machine reads alone"
    try:
        client = distributed.Client(address, timeout=CONNECT, set_as_default=False)
    except ValueError as e:
        hint = "add --scheduler tcp://HOST:8786, file:FILE.json, mpi or threads"
        raise UsageError(f"{address!r} is not an address of a Dask scheduler: {e}", hint) from e
    except (OSError, TimeoutError) as e:
        raise CannotLook(f"no Dask scheduler answers at {address}: {e}", hint) from e

    def width() -> int:
        with suppress(Exception):  # errors of its comms have no common base
            return sum(client.nthreads().values()) if client.status == "running" else 0
        return 0

    try:
        executor = client.get_executor(pure=False, retries=RETRIES)
        yield Engine(executor, f"the Dask scheduler at {address}", hint, width)
    finally:
        client.close(timeout=5)


def _connect_mpi() -> Iterator[Engine]:
    try:
        from mpi4py.futures import MPIPoolExecutor, _core
    except (ImportError, RuntimeError) as e:  # no mpi4py, or no MPI
        hint = "pip install 'ckpt-tools[mpi]', and install or load the system's MPI, such as openmpi-bin"
        raise UsageError(f"--scheduler mpi needs mpi4py and an MPI: {e}", hint) from None
    if getattr(_core, "SharedPool", None) is None:
        text = "--scheduler mpi works inside mpirun and mpi4py.futures: one process asks, the others read"
        raise UsageError(text, MPIRUN)
    with MPIPoolExecutor() as executor:
        yield Engine(executor, "the MPI job", width=lambda: int(executor.num_workers))
