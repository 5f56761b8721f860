"""The command shares two heaps between its threads where a URL is asked about, uses the memory of one answer for
the next, and leaves others alone.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import ctypes, os, re, sys, tempfile, threading
from ckpt_tools.cli import dispatch, main

def heaps(_argv):
    libc, together = ctypes.CDLL(None), threading.Barrier(6)
    def work():
        together.wait()
        libc.malloc(5000)
        together.wait()
    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads: t.start()
    for t in threads: t.join()
    libc.fopen.restype = ctypes.c_void_p
    with tempfile.NamedTemporaryFile() as f:
        stream = ctypes.c_void_p(libc.fopen(f.name.encode(), b"w"))
        libc.malloc_info(0, stream)
        libc.fclose(stream)
        print(len(re.findall(rb"<heap nr=", f.read())), flush=True)
    return 0

dispatch.execute = heaps
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("words", "most"), [(("ls", "s3://bucket/run"), 2), (("ls", "/run"), 99)])
def test_threads_share_two_heaps(words: tuple[str, ...], most: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=True)
    count = int(done.stdout)
    assert count <= most
    assert most == 2 or count > 2  # else this test could not fail


ANSWERS = """
import ctypes, resource, sys
from concurrent.futures import ThreadPoolExecutor
from ckpt_tools.cli import dispatch, main

MIB, ROUNDS, PARTS = 1 << 20, 16, 8

def answers(_argv):
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    def answer(_):
        parts = [libc.malloc(4 * MIB) for _ in range(PARTS)]
        for part in parts:
            ctypes.memset(part, 1, 4 * MIB)
        for part in reversed(parts):
            libc.free(part)
    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with ThreadPoolExecutor(1) as pool:
        list(pool.map(answer, range(4)))
        before = faults()
        list(pool.map(answer, range(ROUNDS)))
    print((faults() - before) * resource.getpagesize() / (ROUNDS * PARTS * 4 * MIB), flush=True)
    return 0

dispatch.execute = answers
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("words", "most"), [(("ls", "s3://bucket/run"), 0.05), (("ls", "/run"), 99)])
def test_the_kernel_clears_no_page_twice(words: tuple[str, ...], most: float) -> None:
    """How much of the memory of answers the kernel had to provide anew: it costs as much as to read them."""
    done = subprocess.run([sys.executable, "-c", ANSWERS, *words], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= most
