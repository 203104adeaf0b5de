"""The budget of DESIGN section 4, on serialised messages with every counter at a large value."""

import numpy as np
import pytest

from specdec.core.draft import Draft, DraftKind, DraftLaw
from specdec.core.tree import DraftTree
from specdec.core.verification import TargetLaw, Verification, VerifyForm
from specdec.edge.draft_codec import encode_draft_reply, encode_draft_request
from specdec.edge.messages import DraftReply, DraftRequest, Load, Timing, VerifyReply, VerifyRequest
from specdec.edge.verify_codec import encode_verify_reply, encode_verify_request

K, M = 8, 32
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TIMING = Timing(2_000_000, 2_000_000, 64, 130_000, 4096)
LOAD = Load(1_000, 1_000, 4_000_000, 4_000_000, True)
BUDGET_US = 10_000_000


def context_tail(vocab: int) -> np.ndarray:
    return np.arange(vocab - K - 1, vocab, dtype=np.uint32)


@pytest.mark.parametrize("vocab", [49_152, 151_936])
def test_every_message_of_a_sampled_cycle_is_under_2_kib(vocab: int) -> None:
    rng = np.random.default_rng(0)
    supports = tuple(rng.choice(vocab, M, replace=False).astype(np.uint32) for _ in range(K))
    tree = DraftTree.chain([int(ids[0]) for ids in supports])
    q, p = np.full(M, 1 / M, np.float16), np.full(M, 0.9 / M, np.float32)
    tail = context_tail(vocab)
    draft = Draft(tree, DraftKind.SAMPLED, tuple(DraftLaw(ids, q) for ids in supports), "draft-lm", 7.5)
    answer = Verification(VerifyForm.PQ, context_tail(vocab), tuple(TargetLaw(ids, p, 0.1) for ids in supports))
    asked = DraftRequest(10**6, 130_000, tail, K, DraftKind.SAMPLED, M, BUDGET_US, TRACEPARENT)
    judged = VerifyRequest(10**6, 130_000, tail, tree, VerifyForm.PQ, supports, False, BUDGET_US, TRACEPARENT)
    sizes = [
        encode_draft_request(asked).ByteSize(),
        encode_draft_reply(DraftReply(10**6, draft, TIMING, LOAD)).ByteSize(),
        encode_verify_request(judged).ByteSize(),
        encode_verify_reply(VerifyReply(10**6, answer, TIMING, LOAD)).ByteSize(),
    ]
    assert max(sizes) < 2048, sizes


def test_every_message_of_a_y_form_cycle_is_under_128_bytes_and_its_trace_context() -> None:
    vocab = 151_936
    tail, tree = context_tail(vocab), DraftTree.chain(list(range(vocab - K, vocab)))
    asked = DraftRequest(10**6, 130_000, tail, K, DraftKind.CHOSEN, 0, BUDGET_US, TRACEPARENT)
    judged = VerifyRequest(10**6, 130_000, tail, tree, budget_us=BUDGET_US, traceparent=TRACEPARENT)
    draft, answer = Draft(tree, drafter="draft-lm", score=7.5), Verification(VerifyForm.Y, tail)
    trace = len(TRACEPARENT) + 2
    sizes = [
        encode_draft_request(asked).ByteSize() - trace,
        encode_draft_reply(DraftReply(10**6, draft, TIMING, LOAD)).ByteSize(),
        encode_verify_request(judged).ByteSize() - trace,
        encode_verify_reply(VerifyReply(10**6, answer, TIMING, LOAD)).ByteSize(),
    ]
    assert max(sizes) < 128, sizes


def test_a_tree_costs_one_byte_a_node_more_than_a_chain() -> None:
    tokens = np.arange(60, dtype=np.uint32)
    bushy = DraftTree(tokens, np.arange(60) // 2)
    sizes = [
        encode_verify_request(VerifyRequest(1, 0, tokens, tree)).ByteSize() for tree in (bushy, DraftTree.chain(tokens))
    ]
    assert sizes[0] - sizes[1] == 60 + 2
