"""Forwards on a GPU: padded grids, and for shapes that come again a captured graph, because a small model's kernels are
shorter than the time that Python takes to launch them."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from specdec.lm.grids import ForwardShape, GridLayout
from specdec.lm.network import Attention, KVShape
from specdec.lm.padded import PaddedAttention
from specdec.lm.ragged import RaggedBatch
from specdec.lm.staging import Staging
from specdec.lm.torch_kv import TorchKV

MOST_GRAPHS = 64  # captured shapes of one storage, least recently used first out
_MOST_ROWS = 512  # a larger forward computes for longer than its launches take
_MOST_CELLS = 1 << 22  # query cells x columns, for the same reason, and what a graph may hold in memory
_WARM_UPS = 2  # libraries choose kernels and take workspaces on first use, which a capture must not see

_log = logging.getLogger(__name__)


class Decoder(Protocol):
    """A network that decodes packed rows on the device, whatever attends for it. To be captured it must neither wait
    for the device nor send anything to it.

    width: of the logits. windows, scaling: of `PaddedAttention`."""

    kv_shape: KVShape
    width: int
    windows: list[int | None]
    scaling: float

    def decoder(self, input_ids: torch.Tensor, position_ids: torch.Tensor, attention: Attention) -> torch.Tensor:
        """int64[total], int64[total] -> [total, hidden]."""

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> float32[rows, width]."""


class Capture(Protocol):
    """Records what `work` does to the device, and returns what does it again: with the same memory, whatever is in it
    by then. `work` may run several times on the way, and need not have run when this returns."""

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]: ...


class CudaCapture:
    """`Capture` by CUDA graphs. All share one memory pool: they never run at the same time, and what one leaves behind
    is read before the next."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    work()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on using the device: drafters of one process, copies of the KV tier.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                work()
        return graph.replay


class _Graph:
    """One captured shape."""

    def __init__(self, staging: Staging, replay: Callable[[], None]) -> None:
        self.staging = staging
        self.replay = replay


class PaddedKV(TorchKV):
    """A `TorchKV` with one block more, written by the rows that only fill a grid, and with the graphs captured over it:
    they hold its addresses, and go with it."""

    def __init__(self, shape: KVShape, num_blocks: int) -> None:
        super().__init__(shape, num_blocks, spare=1)
        self.scratch = num_blocks
        self.graphs: OrderedDict[ForwardShape, _Graph] = OrderedDict()


class CudaGraphs:
    """The `Network` that a decoder makes on a GPU. One thread, one stream: results are on the device, in order, and
    nothing here waits for them.

    capture: None computes every forward eagerly; may be set at any time."""

    def __init__(self, decoder: Decoder, capture: Capture | None, most_graphs: int = MOST_GRAPHS) -> None:
        self.kv_shape = decoder.kv_shape
        self.capture = capture
        self._decoder = decoder
        self._most_graphs = most_graphs
        self._logits: dict[int, torch.Tensor] = {}

    def new_storage(self, num_blocks: int) -> PaddedKV:
        return PaddedKV(self.kv_shape, num_blocks)

    def forward(self, batch: RaggedBatch, storage: PaddedKV) -> torch.Tensor:
        """float32[wanted, width], see `Network.forward`."""
        with torch.inference_mode():
            layout = GridLayout(batch)
            exact = layout.shape
            shape = exact.padded()
            if self.capture is None or not _worth_a_graph(shape):
                return self._eager(layout, exact, storage)
            graph = storage.graphs.get(shape)
            staging = _sent(layout, shape, storage, None if graph is None else graph.staging)
            if graph is None:
                try:
                    graph = self._captured(self.capture, shape, staging, storage)
                except RuntimeError as error:
                    logits = self._eager(layout, exact, storage)  # whatever is wrong with the forward itself is raised
                    self.capture = None
                    _log.warning("no more graphs are captured, small forwards are slower: %s", error)
                    return logits
            storage.graphs.move_to_end(shape)
            graph.replay()
            # A copy: the next replay writes over it, and callers may still hold these.
            return self._logits[shape.wanted][: exact.wanted].clone()

    def _eager(self, layout: GridLayout, shape: ForwardShape, storage: PaddedKV) -> torch.Tensor:
        return self._compute(shape, _sent(layout, shape, storage), storage.data)

    def _captured(self, capture: Capture, shape: ForwardShape, staging: Staging, storage: PaddedKV) -> _Graph:
        data = storage.data
        if shape.wanted not in self._logits:
            size = (shape.wanted, self._decoder.width)
            self._logits[shape.wanted] = torch.zeros(size, dtype=torch.float32, device=data.device)
        out = self._logits[shape.wanted]  # outside of the pool, and shared: it may be large

        def work() -> None:
            out.copy_(self._compute(shape, staging, data))

        graph = storage.graphs[shape] = _Graph(staging, capture(work))
        # Only now: a capture waits for the device, so the graph that goes is not still running.
        if len(storage.graphs) > self._most_graphs:
            storage.graphs.popitem(last=False)
        return graph

    def _compute(self, shape: ForwardShape, staging: Staging, data: torch.Tensor) -> torch.Tensor:
        inputs = staging.tensors
        attention = PaddedAttention(shape, inputs, data, self._decoder.windows, self._decoder.scaling)
        with _backends(data.device):
            hidden = self._decoder.decoder(inputs["input_ids"], inputs["position_ids"], attention)
            return self._decoder.head(hidden.index_select(0, inputs["wanted_rows"]))


def _sent(layout: GridLayout, shape: ForwardShape, storage: PaddedKV, staging: Staging | None = None) -> Staging:
    """The batch on its way to the device, by `staging` or a new one."""
    staging = staging or Staging(shape.fields(), storage.data.device)
    layout.fill(staging.arrays(), shape, storage.scratch)
    staging.send()
    return staging


def _worth_a_graph(shape: ForwardShape) -> bool:
    cells = sum(g.segments * g.rows * g.columns for g in shape.grids)
    return shape.total <= _MOST_ROWS and cells <= _MOST_CELLS


def _backends(device: torch.device) -> AbstractContextManager[None]:
    """cuDNN's attention would build a plan for every new shape."""
    if device.type == "cuda":
        return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return nullcontext()
