"""The way of small arrays to the device and back without a wait in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# Name -> (shape, numpy type).
Fields = dict[str, tuple[tuple[int, ...], type[np.generic]]]
_ALIGN = 16  # bytes; every numpy type that is sent may start there


class Staging:
    """Input arrays of one forward, in one host buffer (pinned for a GPU) and one device buffer of fixed address: one
    copy, which does not block, sends them all.

    Write into what `arrays()` returns, call `send`, compute with `tensors`."""

    def __init__(self, fields: Fields, device: torch.device) -> None:
        spans: dict[str, tuple[int, int]] = {}
        size = 0
        for name, (shape, dtype) in fields.items():
            bytes_ = int(np.prod(shape)) * np.dtype(dtype).itemsize
            spans[name] = (size, size + bytes_)
            size += -(-bytes_ // _ALIGN) * _ALIGN
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._sent: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._arrays: dict[str, NDArray[Any]] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for name, (shape, dtype) in fields.items():
            span = slice(*spans[name])
            self._arrays[name] = self._host.numpy()[span].view(dtype).reshape(shape)
            self.tensors[name] = self._device[span].view(_TORCH[dtype]).view(shape)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The host's side, free to be written: waits for the last `send` if that is still on its way."""
        if self._sent is not None:
            self._sent.synchronize()
        return self._arrays

    def send(self) -> None:
        self._device.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._device.device))


_TORCH: dict[type[np.generic], torch.dtype] = {np.int64: torch.int64, np.bool_: torch.bool}


def fetched(tensors: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
    """Their values in host memory, with one wait for all: into pinned memory from a GPU, as they are from elsewhere."""
    hosts = []
    for tensor in tensors:
        host = tensor
        if tensor.is_cuda:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
        hosts.append(host)
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return [host.numpy() for host in hosts]
