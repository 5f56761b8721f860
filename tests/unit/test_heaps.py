"""The command shares two heaps between its threads where a URL is asked about, and leaves others alone."""

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


@pytest.mark.parametrize(("words", "most"), [(("ls", "s3://bucket/run"), 2), (("ls", "/run"), 99)])
def test_threads_share_two_heaps(words: tuple[str, ...], most: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=True)
    count = int(done.stdout)
    assert count <= most
    assert most == 2 or count > 2  # else this test could not fail
