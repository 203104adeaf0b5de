"""Weights that are views of a mapped file: their pages count as this process' memory once they were read."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from pathlib import Path

import torch

_MAPS = Path("/proc/self/maps")
_DONTNEED = 4  # of madvise


def unload(tensors: Iterable[torch.Tensor]) -> None:
    """Give back the pages of those `tensors` that lie in a mapped file, once they were copied elsewhere. Their values
    stay: who reads them again reads the file again. Tensors in memory of their own are left alone, and so is everything
    where the system has no such list of mappings."""
    if not _MAPS.is_file():
        return
    files = _file_mappings(_MAPS.read_text())
    for tensor in tensors:
        start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if start < end and any(first <= start and end <= last for first, last in files):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONTNEED)


def _file_mappings(maps: str) -> list[tuple[int, int]]:
    """Address ranges of mapped files, of lines such as "7f00-7f80 rw-p 00000000 fe:01 1234 /folder/file"."""
    found = []
    for line in maps.splitlines():
        bounds, _, _, _, inode = line.split()[:5]
        if inode != "0":
            first, last = bounds.split("-")
            found.append((int(first, 16), int(last, 16)))
    return found
