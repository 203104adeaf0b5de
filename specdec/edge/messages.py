"""What travels between coordinator and replicas, as plain dataclasses. `specdec.edge.codec` turns them into
protos and back; protos/{common,draft,target}.proto say what the fields mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdec.core.draft import Draft, DraftKind
from specdec.core.features import FeatureRows, VerifiedFeatures
from specdec.core.sampling import SamplingParams
from specdec.core.step_time import StepTimeTable
from specdec.core.tree import EMPTY_TREE, DraftTree, Ids
from specdec.core.verification import Verification, VerifyForm

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class OpenSession:
    """First message of a stream, or of a new turn on it. seed: 0 <= seed < 2^64. drafter: DraftService only.
    feature_layers: TargetService only, ascending; hidden states are wanted after so many decoder layers, 0: the
    embeddings. cache_salt: only sessions of one salt share what replicas keep of contexts."""

    session_id: str
    params: SamplingParams
    seed: int
    turn_start: int
    drafter: str = ""
    feature_layers: tuple[int, ...] = ()
    cache_salt: bytes = b""
    protocol_version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class StaleContext:
    """The receiver does not hold tokens[:offset]; send again from `held`."""

    held: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """This one message could not be served; the stream lives on. field: the caller's field at fault, if it is
    one."""

    reason: str
    message: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """queue_us: arrival to the start of the first forward that served the message; compute_us: the forwards
    that served it, whole; batch_size, batch_rows: messages and token rows in the last of those, all sessions
    together; computed_tokens: context tokens computed for it."""

    queue_us: int = 0
    compute_us: int = 0
    batch_size: int = 0
    computed_tokens: int = 0
    batch_rows: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """kv_free, kv_total in tokens."""

    queued: int = 0
    running: int = 0
    kv_free: int = 0
    kv_total: int = 0
    draining: bool = False


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """tree: its drafts may branch, num_draft_tokens counts nodes. feature_layers: hidden states of the target that it
    needs, ascending, () for none; feature_size: their width, 0: any. target_base_fingerprint: of the target it was
    trained for, empty: any."""

    name: str
    tree: bool = False
    feature_layers: tuple[int, ...] = ()
    feature_size: int = 0
    target_base_fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """role: "draft" or "target". config: effective settings as text, secrets left out (`config.describe`). step_times:
    a verifier's, None where nothing was measured. num_layers, hidden_size, base_fingerprint (of the weights before
    rounding to dtype): a verifier's. drafter_infos: a draft replica's, at most one per name in `drafters`."""

    role: str
    replica_id: str
    vocab_size: int
    tokenizer_hash: str
    model_fingerprint: str
    model_name: str
    dtype: str
    max_context: int
    max_nodes: int
    token_budget: int
    kv_block_size: int = 0
    eos_ids: tuple[int, ...] = ()
    drafters: tuple[str, ...] = ()
    load: Load = Load()
    config: Mapping[str, str] = field(default_factory=dict)
    step_times: StepTimeTable | None = None
    num_layers: int = 0
    hidden_size: int = 0
    base_fingerprint: str = ""
    drafter_infos: tuple[DrafterInfo, ...] = ()
    protocol_version: int = PROTOCOL_VERSION

    def drafter_info(self, name: str) -> DrafterInfo:
        """What is known of one of its drafters; that it needs nothing, where nothing was said."""
        return next((info for info in self.drafter_infos if info.name == name), DrafterInfo(name))


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """tokens[offset:] = token_ids; then at most num_draft_tokens guesses. kind: CHOSEN, or SAMPLED (the
    drafter may answer SAMPLED_WITHOUT_REPLACEMENT). support: M, ids kept of a sampled law. budget_us 0: no
    budget. features: the target's hidden states at positions of the context that the drafter has not been sent yet, or
    anew; None: none."""

    cycle: int
    offset: int
    token_ids: Ids
    num_draft_tokens: int
    kind: DraftKind = DraftKind.CHOSEN
    support: int = 0
    budget_us: int = 0
    traceparent: str = ""
    open: OpenSession | None = None
    features: FeatureRows | None = None


@dataclass(frozen=True, slots=True)
class DraftReply:
    cycle: int
    result: Draft | StaleContext | Refusal
    timing: Timing = Timing()
    load: Load = Load()


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """tokens[offset:] = token_ids; then the target's laws at every node of `tree`. supports (form PQ): one
    uint32 array per inner node, in node order. want_child_p: form Y only. budget_us 0: no budget."""

    cycle: int
    offset: int
    token_ids: Ids
    tree: DraftTree = EMPTY_TREE
    form: VerifyForm = VerifyForm.Y
    supports: tuple[Ids, ...] = ()
    want_child_p: bool = False
    budget_us: int = 0
    traceparent: str = ""
    open: OpenSession | None = None


@dataclass(frozen=True, slots=True)
class VerifyReply:
    """features: with a verification, if the session wants them."""

    cycle: int
    result: Verification | StaleContext | Refusal
    timing: Timing = Timing()
    load: Load = Load()
    features: VerifiedFeatures | None = None
