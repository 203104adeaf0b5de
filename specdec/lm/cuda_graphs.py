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
from specdec.lm.taps import tapped
from specdec.lm.torch_kv import TorchKV

MOST_GRAPHS = 64  # captured shapes of one storage, least recently used first out
_MOST_ROWS = 512  # a larger forward computes for longer than its launches take
_MOST_CELLS = 1 << 22  # query cells x columns, for the same reason, and what a graph may hold in memory
_WARM_UPS = 2  # libraries choose kernels and take workspaces on first use, which a capture must not see

Outputs = tuple[torch.Tensor, torch.Tensor]  # float32[wanted, width], float32[tapped, layers, hidden]

_log = logging.getLogger(__name__)


class Decoder(Protocol):
    """A network that decodes packed rows on the device, whatever attends for it. To be captured it must neither wait
    for the device nor send anything to it.

    width: of the logits; hidden: of the residual stream. windows, scaling: of `PaddedAttention`."""

    kv_shape: KVShape
    width: int
    hidden: int
    windows: list[int | None]
    scaling: float

    def decoder(
        self, first: torch.Tensor, position_ids: torch.Tensor, attention: Attention, layers: tuple[int, ...]
    ) -> list[torch.Tensor]:
        """first: ids, int64[total], or float32[total, hidden] in place of their embeddings; position_ids: int64[total].
        Returns the residual stream after so many layers each, then after all: [total, hidden]."""

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


class _Inputs:
    """What a forward reads on the device. vectors: float32[total, hidden], of a shape with inputs; they come from the
    device more often than not, and go past the staging."""

    def __init__(self, shape: ForwardShape, device: torch.device, hidden: int) -> None:
        self.staging = Staging(shape.fields(), device)
        self.vectors = torch.zeros((shape.total, hidden), device=device) if shape.inputs else None

    @property
    def first(self) -> torch.Tensor:
        return self.staging.tensors["input_ids"] if self.vectors is None else self.vectors

    def send(self, batch: RaggedBatch, layout: GridLayout, shape: ForwardShape, scratch: int) -> None:
        layout.fill(self.staging.arrays(), shape, scratch)
        self.staging.send()
        if self.vectors is not None and batch.inputs is not None:
            self.vectors[: batch.total].copy_(batch.inputs, non_blocking=True)


class _Graph:
    """One captured shape."""

    def __init__(self, inputs: _Inputs, outputs: Outputs, replay: Callable[[], None]) -> None:
        self.inputs = inputs
        self.outputs = outputs
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
        self._outputs: dict[tuple[int, ...], torch.Tensor] = {}

    def new_storage(self, num_blocks: int) -> PaddedKV:
        return PaddedKV(self.kv_shape, num_blocks)

    def forward(self, batch: RaggedBatch, storage: PaddedKV, layers: tuple[int, ...] = ()) -> Outputs:
        """See `Network.forward`."""
        with torch.inference_mode():
            layout = GridLayout(batch, layers)
            logits, hidden = self._forward(batch, layout, storage)
            return logits, hidden if layers else hidden.new_empty((len(batch.tapped_rows), 0, self._decoder.hidden))

    def _forward(self, batch: RaggedBatch, layout: GridLayout, storage: PaddedKV) -> Outputs:
        exact = layout.shape
        shape = exact.padded()
        if self.capture is None or not _worth_a_graph(shape):
            return self._eager(batch, layout, exact, storage)
        graph = storage.graphs.get(shape)
        inputs = self._sent(batch, layout, shape, storage, None if graph is None else graph.inputs)
        if graph is None:
            try:
                graph = self._captured(self.capture, shape, inputs, storage)
            except RuntimeError as error:
                outputs = self._eager(batch, layout, exact, storage)  # what is wrong with the forward itself is raised
                self.capture = None
                _log.warning("no more graphs are captured, small forwards are slower: %s", error)
                return outputs
        storage.graphs.move_to_end(shape)
        graph.replay()
        # Copies: the next replay writes over them, and callers may still hold these.
        logits, hidden = graph.outputs
        return logits[: exact.wanted].clone(), hidden[: exact.tapped].clone()

    def _eager(self, batch: RaggedBatch, layout: GridLayout, shape: ForwardShape, storage: PaddedKV) -> Outputs:
        return self._compute(shape, self._sent(batch, layout, shape, storage), storage.data)

    def _captured(self, capture: Capture, shape: ForwardShape, inputs: _Inputs, storage: PaddedKV) -> _Graph:
        data, hidden = storage.data, self._decoder.hidden
        outputs = (
            self._output(shape.wanted, self._decoder.width),
            self._output(shape.tapped, len(shape.layers), hidden),
        )

        def work() -> None:
            for out, computed in zip(outputs, self._compute(shape, inputs, data), strict=True):
                out.copy_(computed)

        graph = storage.graphs[shape] = _Graph(inputs, outputs, capture(work))
        # Only now: a capture waits for the device, so the graph that goes is not still running.
        if len(storage.graphs) > self._most_graphs:
            storage.graphs.popitem(last=False)
        return graph

    def _output(self, *size: int) -> torch.Tensor:
        """Outside of the graphs' pool, and shared by all of one size: logits may be large."""
        if size not in self._outputs:
            self._outputs[size] = torch.zeros(size, dtype=torch.float32, device=self.kv_shape.device)
        return self._outputs[size]

    def _sent(
        self,
        batch: RaggedBatch,
        layout: GridLayout,
        shape: ForwardShape,
        storage: PaddedKV,
        inputs: _Inputs | None = None,
    ) -> _Inputs:
        """The batch on its way to the device, by `inputs` or new ones."""
        inputs = inputs or _Inputs(shape, storage.data.device, self._decoder.hidden)
        inputs.send(batch, layout, shape, storage.scratch)
        return inputs

    def _compute(self, shape: ForwardShape, inputs: _Inputs, data: torch.Tensor) -> Outputs:
        fields = inputs.staging.tensors
        attention = PaddedAttention(shape, fields, data, self._decoder.windows, self._decoder.scaling)
        with _backends(data.device):
            states = self._decoder.decoder(inputs.first, fields["position_ids"], attention, shape.layers)
            logits = self._decoder.head(states[-1].index_select(0, fields["wanted_rows"]))
        return logits, tapped(states[:-1], fields["tapped_rows"], self._decoder.hidden)


def _worth_a_graph(shape: ForwardShape) -> bool:
    cells = sum(g.segments * g.rows * g.columns for g in shape.grids)
    return shape.total <= _MOST_ROWS and cells <= _MOST_CELLS


def _backends(device: torch.device) -> AbstractContextManager[None]:
    """cuDNN's attention would build a plan for every new shape."""
    if device.type == "cuda":
        return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return nullcontext()
