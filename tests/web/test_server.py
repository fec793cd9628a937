"""The process that answers."""

import platform
import subprocess
import sys

import pytest

HEAPS = """
import ctypes, sys, threading
from deepfishing.web.server import share_heaps

if sys.argv[1] == "shared":
    share_heaps()
c, done = ctypes.CDLL(None), threading.Barrier(13)
c.malloc.restype = c.fopen.restype = ctypes.c_void_p
def work():
    assert c.malloc(1000)
    done.wait()
threads = [threading.Thread(target=work) for _ in range(12)]
[thread.start() for thread in threads]
done.wait()
file = ctypes.c_void_p(c.fopen(b"/dev/stdout", b"w"))
c.malloc_info(0, file)
c.fflush(file)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps of threads are glibc's")
def test_threads_share_two_heaps():
    def heaps(how):
        command = [sys.executable, "-c", HEAPS, how]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        return said.stdout.count("<heap nr=")

    assert heaps("own") > 2
    assert heaps("shared") == 2
