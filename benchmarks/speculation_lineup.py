"""Who takes part in `benchmarks.speculation`, and how each is asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import bf16_gguf, installed, llamacpp_program
from benchmarks.speculation_beds import Prepared
from benchmarks.subjects.lineup import (
    GENERATE,
    LLAMACPP,
    OURS,
    PEERS,
    VLLM,
    Entry,
    Setting,
    quantised,
    vllm,
)
from benchmarks.subjects.process import Subject
from specdec.core.errors import ConfigError

PLAIN, AUTO = f"{OURS}, target-only", f"{OURS}, auto"
TRANSFORMERS = "transformers"
PEER_NAMES = (TRANSFORMERS, *PEERS)
DTYPE = "bfloat16"
LOOKUP = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}


@dataclass(frozen=True, slots=True)
class Entrant:
    """name: in the table. subject: the process that is asked, with `arguments` beyond the prompt."""

    name: str
    subject: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.subject == OURS


def our_entry(prepared: Prepared, logs: Path, draft_tokens: int | None = None) -> Entry:
    """One cluster, whose draft service serves every drafter: weights are held once. The same questions come again and
    again: a suffix tree that knew the answers of other requests would make a show of it. draft_tokens: the most in a
    cycle, None: the usual."""
    settings = {"SUFFIX_SHARED": "false"}
    if draft_tokens is not None:
        settings["MAX_DRAFT_TOKENS"] = str(draft_tokens)
    given = ["--target", prepared.target, "--draft", prepared.ours, "--dtype", DTYPE, *prepared.bed.flags]
    command = [sys.executable, "-m", "benchmarks.subjects.ours_cluster", str(logs), *given]
    return Entry(OURS, command, settings)


def peer_entries(prepared: Prepared, peers: Sequence[str], streams: int = 1) -> list[Entry]:
    """Each peer once without and once with speculation, where one process cannot do both; of `vllm:draft`, that one
    process alone. Raises ConfigError."""
    entries = []
    for named in peers:
        peer, _, way = named.partition(":")
        if peer not in PEER_NAMES:
            raise ConfigError("peers", peer, f"choose from {', '.join(PEER_NAMES)}")
        if peer in PEERS and not installed(peer):
            raise ConfigError("peers", peer, "not installed: make bench-peers")
        its = _MAKERS[peer](prepared, streams)
        chosen = [entry for entry in its if not way or entry.name.endswith(f", {way}")]
        if not chosen:
            raise ConfigError("peers", named, f"choose from {', '.join(entry.name for entry in its)}")
        entries += chosen
    return entries


def our_entrants(subject: Subject, only: Sequence[str] = ()) -> list[Entrant]:
    """Without drafts, by the planner with each drafter alone, and with all of them. only: drafters, () for all."""
    drafters = [name for name in subject.ask("about")["drafters"] if not only or name in only]
    return [
        Entrant(PLAIN, OURS, {"num_draft_tokens": 0}),
        *(Entrant(f"{OURS}, {drafter}", OURS, {"drafter": drafter}) for drafter in drafters),
        Entrant(AUTO, OURS),
    ]


def peer_entrants(prepared: Prepared, entries: Sequence[Entry]) -> list[Entrant]:
    entrants: list[Entrant] = []
    for entry in entries:
        if entry.name == GENERATE:
            entrants.append(Entrant(GENERATE, entry.name, {"way": "plain"}))
            if prepared.draft:
                entrants.append(Entrant(f"{GENERATE}, assisted", entry.name, {"way": "assisted"}))
            entrants.append(Entrant(f"{GENERATE}, prompt lookup", entry.name, {"way": "lookup"}))
        else:
            arguments = {"cache": True} if entry.name.startswith(LLAMACPP) else {}
            entrants.append(Entrant(entry.name, entry.name, arguments))
    return entrants


def _transformers(prepared: Prepared, streams: int) -> list[Entry]:
    arguments = [prepared.target, DTYPE, *([prepared.draft] if prepared.draft else [])]
    return [Entry(GENERATE, [sys.executable, "-m", "benchmarks.subjects.assisted", *arguments])]


def _vllm(prepared: Prepared, streams: int) -> list[Entry]:
    usual = vllm(_setting(prepared, streams))

    def entry(name: str, **options: Any) -> Entry:
        options["enable_prefix_caching"] = True  # as ours has it
        return Entry(name, [*usual.command, json.dumps(options)], usual.environment, usual.kv_bytes)

    def speculative(name: str, config: Mapping[str, Any]) -> Entry:
        config = {**config, "num_speculative_tokens": prepared.bed.chain}
        # Its counts of draft tokens are among the statistics that it logs.
        return entry(f"{VLLM}, {name}", speculative_config=config, disable_log_stats=False)

    drafted = [speculative("draft", {"method": "draft_model", "model": prepared.draft})] if prepared.draft else []
    return [entry(VLLM), *drafted, speculative("n-gram", LOOKUP)]


def _llamacpp(prepared: Prepared, streams: int) -> list[Entry]:
    bed = prepared.bed
    file = bf16_gguf(quantised(bed.target, None))
    context = str(streams * (prepared.longest + bed.new_tokens + 64))
    command = [sys.executable, "-m", "benchmarks.subjects.llama_server", str(llamacpp_program("llama-server"))]
    command += [str(file), str(streams), context]
    lookup = Entry(f"{LLAMACPP}, n-gram", [*command, "--spec-type", "ngram-simple"])
    if bed.draft is None:
        return [Entry(LLAMACPP, command), lookup]
    flags = ["--spec-draft-model", str(bf16_gguf(quantised(bed.draft, None))), "--spec-type", "draft-simple"]
    return [
        Entry(LLAMACPP, command),
        Entry(f"{LLAMACPP}, draft", [*command, *flags, "--spec-draft-n-max", str(bed.chain)]),
        lookup,
    ]


def _setting(prepared: Prepared, streams: int) -> Setting:
    length = prepared.longest + prepared.bed.new_tokens + 64
    return Setting(prepared.bed.target, prepared.target, DTYPE, "cpu", streams * length, length, streams)


_MAKERS = {TRANSFORMERS: _transformers, "vllm": _vllm, "llamacpp": _llamacpp}
