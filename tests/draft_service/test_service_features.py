"""Hidden states over real gRPC: a drafter that reads them has them with its job, no other is given any."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draft_service.drafters import DraftJob, DraftModel
from draft_service.session import DraftSession
from protos import common_pb2
from specdec.core.draft import Draft
from specdec.core.errors import SpecdecError
from specdec.core.features import NO_FEATURES, FeatureRows, row_bytes
from specdec.core.tree import DraftTree
from specdec.edge.info_codec import decode_info
from specdec.edge.messages import DrafterInfo, Refusal
from tests.draft_service.wire import serving

ROW = row_bytes(2, 4)


class Reader:
    """Writes down what its jobs' sessions hold."""

    kv_free = kv_total = 0

    def __init__(self, model: DraftModel) -> None:
        self.model = model
        self.held: list[FeatureRows] = []

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft | SpecdecError | None]:
        self.held += [job.session.features for job in jobs]
        return [Draft(DraftTree.chain([1])) for _ in jobs]

    def close(self, session: DraftSession) -> None:
        """Nothing is held."""


def rows(offset: int, n: int) -> FeatureRows:
    return FeatureRows(offset, n, bytes(range(n * ROW)))


READING = DraftModel(tree=True, feature_layers=(1, 3), feature_size=4, target_base_fingerprint="base")


async def test_info_tells_what_each_drafter_reads() -> None:
    async with serving({"eagle": Reader(READING), "plain": Reader(DraftModel())}) as served:
        info = decode_info(await served.stub.Info(common_pb2.InfoRequest()))
    assert info.drafter_infos == (DrafterInfo("eagle", True, (1, 3), 4, "base"), DrafterInfo("plain"))


async def test_rows_come_with_the_job_they_are_for_and_go_with_the_drafter() -> None:
    eagle, plain = Reader(READING), Reader(DraftModel())
    async with serving({"eagle": eagle, "plain": plain}) as served:
        client = served.client()
        await client.ask(0, [1, 2, 3, 4], open=client.opening("eagle"), features=rows(0, 3))
        await client.ask(4, [5, 6])
        await client.ask(6, [7], open=client.opening("plain"), features=rows(3, 3))
        await client.ask(7, [8], open=client.opening("eagle"))
        await client.ask(8, [9], features=rows(5, 3))
    assert eagle.held == [rows(0, 3), rows(0, 3), NO_FEATURES, rows(5, 3)]
    assert plain.held == [NO_FEATURES]


@pytest.mark.parametrize(("size", "field"), [(ROW + 1, "features"), (ROW // 2, "features")])
async def test_rows_of_another_size_are_refused_in_band_and_the_stream_lives_on(size: int, field: str) -> None:
    async with serving({"eagle": Reader(READING)}) as served:
        client = served.client()
        wrong = FeatureRows(0, 2, bytes(2 * size))
        reply = await client.ask(0, [1, 2, 3], open=client.opening("eagle"), features=wrong)
        assert isinstance(reply.result, Refusal) and reply.result.field == field
        assert isinstance((await client.ask(0, [1, 2, 3], features=rows(0, 2))).result, Draft)
