"""Huge pages for processes that fork again and again.

A fork copies the page table, and the child's end takes it down. In pages of 4 KiB that costs 40 ms of processor time for a
process that has imported torch and the tests (600 MB), which is more than most of these children do. In pages of 2 MiB it costs
13 ms. Kernels before 6.1 cannot do it on demand; there the pages stay as they are.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_BYTES = 2 << 20
_MADV_COLLAPSE = 25


def collapse_memory() -> None:
    """Put private memory of this process, the heap and anonymous mappings, into huge pages where the kernel can."""
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, inode, *name = line.split()
        if rights != "rw-p" or inode != "0" or (name and name != ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        for address in range(-(-start // _BYTES) * _BYTES, end - _BYTES + 1, _BYTES):
            madvise(ctypes.c_void_p(address), ctypes.c_size_t(_BYTES), _MADV_COLLAPSE)  # a refusal changes nothing
