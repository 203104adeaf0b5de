"""A tiny random Llama over 32 ids, and drafters over it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from draft_service.drafters import DraftModel
from draft_service.drafters.lm import LmDrafter
from draft_service.drafters.ngram import NgramDrafter
from specdec.edge.telemetry import ReplicaMetrics, Telemetry
from specdec.lm.loading import LoadedModel, load_model
from specdec.lm.runner import Runner, Segment
from tests.draft_service.wire import Served, serving
from tests.tiny_models import make_tiny_model

NewDrafter = Callable[..., LmDrafter]

VOCAB = 32
MAX_CONTEXT = 160


class Clock:
    """Stands still unless moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TickingRunner(Runner):
    """Every forward takes `base + per_row * rows` seconds of its clock, and is written down."""

    def __init__(self, loaded: LoadedModel, kv_tokens: int, clock: Clock, base: float, per_row: float) -> None:
        super().__init__(loaded, kv_tokens)
        self._clock, self._base, self._per_row = clock, base, per_row
        self.rows: list[int] = []

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        self.rows.append(sum(segment.rows for segment in segments))
        self._clock.now += self._base + self._per_row * self.rows[-1]
        return super().forward(segments)


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """On matrices this small a second thread only waits for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft-model")
    return make_tiny_model(folder, vocab_size=VOCAB, hidden=32, max_context=MAX_CONTEXT)


@pytest.fixture(scope="session")
def loaded(model_folder: Path) -> LoadedModel:
    return load_model(str(model_folder), dtype="float32", device="cpu")


@pytest.fixture
def metrics() -> ReplicaMetrics:
    return ReplicaMetrics(Telemetry.start("test", env={"OTEL_SDK_DISABLED": "true"}))


@pytest.fixture
def new_drafter(loaded: LoadedModel, metrics: ReplicaMetrics) -> NewDrafter:
    def make(*, kv_tokens: int = 4096, token_budget: int = 256) -> LmDrafter:
        return LmDrafter(Runner(loaded, kv_tokens), metrics, token_budget=token_budget)

    return make


@pytest.fixture
async def replica(new_drafter: NewDrafter) -> AsyncIterator[Served]:
    """The tiny model first, n-gram beside it."""
    async with serving({"lm": new_drafter(), "ngram": NgramDrafter(DraftModel())}) as served:
        yield served
