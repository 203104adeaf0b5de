"""Every name of a span, an attribute and a metric. Metrics are named as Prometheus shows them; what they
mean: contract.md's Layout details, after vLLM. Every series also carries `service_name`."""

from __future__ import annotations

from specdec.edge.otel import OFF, Attributes, Parent, Telemetry, traceparent

__all__ = ["OFF", "Attributes", "CoordinatorMetrics", "Parent", "ReplicaMetrics", "Telemetry", "traceparent"]

# Spans. One trace per request: generate -> one cycle span per cycle -> its phases -> the replicas' share.
SPAN_GENERATE = "generate"
SPAN_CYCLE = "specdec.cycle"
SPAN_DRAFT = "specdec.draft"
SPAN_VERIFY = "specdec.verify"
SPAN_ACCEPT = "specdec.accept"
SPAN_COMMIT = "specdec.commit"
SPAN_PROPOSE = "draft.propose"
SPAN_FORWARD = "target.forward"
SPAN_KV_FETCH = "target.kv_fetch"

# Attributes of the OpenTelemetry gen_ai conventions, whose Python constants are deprecated in place.
OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
CONVERSATION_ID = "gen_ai.conversation.id"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
PROVIDER = "specdec"

# Attributes of our own.
SESSION_ID = "specdec.session.id"
CYCLE = "specdec.cycle.number"
NUM_DRAFT_TOKENS = "specdec.num_draft_tokens"
NUM_ACCEPTED_TOKENS = "specdec.num_accepted_tokens"
NUM_EMITTED_TOKENS = "specdec.num_emitted_tokens"
DRAFTER = "specdec.drafter"
VERIFICATION = "specdec.verification"
FALLBACK = "specdec.fallback"
REPLICA_ID = "specdec.replica.id"
CONTEXT_LENGTH = "specdec.context_length"
BATCH_SIZE = "specdec.batch_size"
QUEUE_US = "specdec.queue_us"
COMPUTE_US = "specdec.compute_us"
NETWORK_US = "specdec.network_us"
KV_TOKENS = "specdec.kv_tokens"

# Seconds. The conventions' buckets for the two gen_ai histograms, with finer ones below 10 ms.
_TTFT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_TPOT = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
)
_SECONDS = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    10,
)
_DURATION = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_ALPHA = tuple(i / 20 for i in range(1, 21))
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


OUTCOMES = ("ok", "cancelled", "refused", "overloaded", "error")
FALLBACKS = ("late", "lost", "refused", "no_drafter", "bad_draft", "draft_context")


class CoordinatorMetrics:
    """phase: draft, verify, accept, commit. position: 0 for the first draft token. role: draft, target. drafter: a name
    that replicas serve. Only a handful of values each: every one is a series."""

    def __init__(self, telemetry: Telemetry) -> None:
        counter, gauge, histogram = telemetry.counter, telemetry.gauge, telemetry.histogram
        self.num_drafts = counter("specdec_num_drafts_total", "cycles that verified a draft")
        self.num_draft_tokens = counter("specdec_num_draft_tokens_total", "draft tokens verified")
        self.num_accepted_tokens = counter("specdec_num_accepted_tokens_total", "draft tokens accepted")
        self.num_accepted_tokens_per_pos = counter(
            "specdec_num_accepted_tokens_per_pos_total", "draft tokens accepted, by position", ["position"]
        )
        self.num_rejected_tokens_per_pos = counter(
            "specdec_num_rejected_tokens_per_pos_total", "drafts refused, by the position where", ["position"]
        )
        self.drafter_drafts = counter("specdec_drafter_drafts_total", "drafts verified, by drafter", ["drafter"])
        self.drafter_draft_tokens = counter(
            "specdec_drafter_draft_tokens_total", "draft tokens verified, by drafter", ["drafter"]
        )
        self.drafter_accepted_tokens = counter(
            "specdec_drafter_accepted_tokens_total", "draft tokens accepted, by drafter", ["drafter"]
        )
        self.drafter_judged_tokens = counter(
            "specdec_drafter_judged_tokens_total",
            "positions at which a draft was judged, by drafter: accepted ones, and the one where it was refused",
            ["drafter"],
        )
        self.num_emitted_tokens = counter("specdec_num_emitted_tokens_total", "tokens given to clients")
        self.cut_tokens = counter("specdec_cut_tokens_total", "tokens verified, then cut behind a stop or a limit")
        self.wasted_draft_tokens = counter(
            "specdec_wasted_draft_tokens_total", "draft tokens that were late, bad or of a cancelled cycle"
        )
        self.cycles = counter("specdec_cycles_total", "cycles, those of plain decoding included")
        self.fallbacks = counter("specdec_fallbacks_total", "cycles without their drafter's draft", ["cause"])
        self.phase_seconds = histogram(
            "specdec_phase_seconds", "time of one phase of a cycle", _SECONDS, ["phase"], "s"
        )
        self.network_seconds = histogram(
            "specdec_network_seconds",
            "time of a phase that the replica does not account for: network, and both processes' handling",
            _SECONDS,
            ["phase"],
            "s",
        )
        self.cycle_seconds = histogram("specdec_cycle_seconds", "time of one cycle", _SECONDS, (), "s")
        self.exact_alpha = histogram(
            "specdec_exact_alpha", "sum of min(p, q) at a draft position, temperature above 0", _ALPHA
        )
        self.alpha_drift = gauge(
            "specdec_alpha_drift",
            "live acceptance per judged position minus the profile's, where enough were judged",
            ["drafter", "sampling"],
        )
        self.quarantines = counter("specdec_quarantines_total", "replicas put aside", ["role", "reason"])
        self.excluded_replicas = gauge(
            "specdec_excluded_replicas", "replicas that cannot serve here", ["role", "reason"]
        )
        self.ready_replicas = gauge("specdec_ready_replicas", "replicas in use", ["role"])
        self.speculation_enabled = gauge("specdec_speculation_enabled", "1 if drafts are asked for")
        self.ready = gauge("specdec_ready", "1 while calls may come: a verifier is ready, and the store answers")
        self.active_streams = gauge("specdec_active_streams", "Generate calls in progress")
        self.resumes = counter("specdec_resumes_total", "turns taken up again by a client")
        self.reopens = counter("specdec_reopens_total", "sessions reopened on another replica", ["role", "reason"])
        self.requests = counter(
            "specdec_requests_total",
            "Generate calls ended: ok, cancelled, refused (the caller's mistake), overloaded, error",
            ["outcome"],
        )
        # What is first counted by its first event has no increase that a query sees.
        for outcome in OUTCOMES:
            self.requests.add(0, outcome=outcome)
        for cause in FALLBACKS:
            self.fallbacks.add(0, cause=cause)
        self.finishes = counter("specdec_finishes_total", "turns that came to their end", ["reason"])
        self.lossy_turns = counter(
            "specdec_lossy_turns_total", "turns under typical acceptance: their output does not have the target's law"
        )
        self.prompt_tokens = counter("specdec_prompt_tokens_total", "prompt tokens of the turns served")
        self.cached_tokens = counter("specdec_cached_tokens_total", "prompt tokens whose KV was at hand")
        self.request_duration = histogram(
            "gen_ai.server.request.duration", "time of a Generate call", _DURATION, (), "s"
        )
        self.time_to_first_token = histogram(
            "gen_ai.server.time_to_first_token", "from the request to its first token", _TTFT, (), "s"
        )
        self.time_per_output_token = histogram(
            "gen_ai.server.time_per_output_token", "mean time of a token after the first", _TPOT, (), "s"
        )


class ReplicaMetrics:
    """Of a draft or a target service; the label service_name tells which."""

    def __init__(self, telemetry: Telemetry) -> None:
        counter, gauge, histogram = telemetry.counter, telemetry.gauge, telemetry.histogram
        self.batch_size = histogram("specdec_batch_size", "messages in one forward", _COUNTS)
        self.queue_seconds = histogram(
            "specdec_queue_seconds", "from a message's arrival to its first forward", _SECONDS, (), "s"
        )
        self.queue_depth = gauge("specdec_queue_depth", "messages waiting for a forward")
        self.running = gauge("specdec_running_messages", "messages in a forward or between their forwards")
        self.compute_seconds = histogram("specdec_compute_seconds", "time of one forward", _SECONDS, (), "s")
        self.sessions = gauge("specdec_sessions", "open streams")
        self.token_budget = gauge("specdec_token_budget", "token rows of one forward at most")
        self.kv_used_tokens = gauge("specdec_kv_used_tokens", "tokens whose KV is held")
        self.kv_total_tokens = gauge("specdec_kv_total_tokens", "tokens whose KV there is room for")
        self.forwards = counter("specdec_forwards_total", "forward passes")
        self.rows = counter("specdec_rows_total", "token rows computed by forwards")
        self.draws = counter("specdec_draws_total", "tokens drawn from a law")
        self.kv_hit_tokens = counter("specdec_kv_hit_tokens_total", "context tokens found in a cache", ["tier"])
        self.kv_store_blocks = counter(
            "specdec_kv_store_blocks_total",
            "KV blocks offered to the KV store (stored, known, dropped, over_budget, failed) or asked of it (loaded, "
            "missed, refused, failed)",
            ["direction", "outcome"],
        )
        self.kv_store_queue_bytes = gauge("specdec_kv_store_queue_bytes", "KV on its way to the KV store")
        self.kv_evictions = counter("specdec_kv_evictions_total", "cached KV blocks given up for others")
        self.refusals = counter("specdec_refusals_total", "messages refused", ["reason"])
        self.stale_contexts = counter("specdec_stale_contexts_total", "messages whose offset was not held")
