"""Freed memory is kept for the next step, and given back where there is none."""

import ctypes
import subprocess
import sys

import pytest

from kdlab.models.memory import keep_small

_MANY = """
import numpy as np, psutil
from kdlab.models.memory import give_back_freed_memory, keep_freed_memory
def held(): return psutil.Process().memory_info().rss >> 20
assert keep_freed_memory()
begin = held()
blocks = [np.ones(1 << 20, np.uint8) for _ in range(200)]
del blocks
kept = held() - begin
assert give_back_freed_memory()
print(kept, held() - begin)
"""


@pytest.mark.processes
def test_what_a_process_keeps_it_can_give_back():
    done = subprocess.run(
        [sys.executable, "-c", _MANY], capture_output=True, text=True, check=True
    )
    held, left = map(int, done.stdout.split())  # MB
    assert held >= 190
    assert left < 40  # a heap grows by 16


def test_a_small_heap_is_asked_for_where_the_library_can(monkeypatch):
    asked = {}

    class Library:
        def mallopt(self, setting, value):
            asked[setting] = value
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    assert keep_small()
    assert asked == {-3: 1 << 20, -1: 8 << 20, -8: 2}  # malloc.h of glibc
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_small()
