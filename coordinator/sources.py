"""The draft sources of one session: the coordinator's own n-gram, which costs nothing, and every drafter that ready
replicas of the pool serve, each over a stream of its own that opens when it is first asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from coordinator.context import Context
from coordinator.drafting import OWN, Drafted, Drafting
from coordinator.features import SessionFeatures
from coordinator.served import ServedDrafter, ServedDrafters
from specdec.core import ngram
from specdec.core.draft import NO_DRAFT, Draft
from specdec.core.source_record import Offer
from specdec.core.tree import DraftTree

# They look up too: how much of the text the own n-gram sees repeated tells about their drafts as well.
LOOKUPS = ("suffix",)
# How well a copied text goes on depends on how much of it was seen to repeat: each is learned by itself. Lengths
# together would let a text that is copied speak for a pair of words that happens to have been there before.
MATCHES = ((8, "long"), (4, "middle"), (0, "short"))


@dataclass(frozen=True, slots=True)
class Ask:
    """A cycle's choice. source: the planner's name for it; drafter: who is asked; k: draft tokens, 0: nobody is; tree:
    they are nodes; local: the draft is the coordinator's own; stream: whose it is otherwise, None: that of no drafter
    in particular."""

    source: str = ""
    drafter: str = ""
    k: int = 0
    tree: bool = False
    local: bool = False
    stream: str | None = None


NOBODY = Ask()


class Sources:
    """served: what the pool's drafters can do. named: the only one that the request allows, None: any. open: the draft
    side towards one drafter, by its name, None: whichever the replicas put first.

    What is offered depends on the committed tokens, on who is ready and on nothing that was drawn (algorithms.md,
    section 9); the n-gram's own proposal is a function of the committed tokens."""

    def __init__(
        self,
        served: ServedDrafters,
        named: str | None,
        open: Callable[[str | None], Drafting],
        features: SessionFeatures,
    ) -> None:
        self._served = served
        self._features = features
        self._named = named
        self._open = open
        self._streams: dict[str | None, Drafting] = {}
        self._lookup = ngram.NO_MATCH

    @property
    def bytes_sent(self) -> int:
        return sum(drafting.bytes_sent for drafting in self._streams.values())

    @property
    def bytes_received(self) -> int:
        return sum(drafting.bytes_received for drafting in self._streams.values())

    def drop(self) -> None:
        """Lets go of every stream."""
        for drafting in self._streams.values():
            drafting.drop()

    def fixed(self, k: int) -> Ask:
        """A cycle whose k is given leaves nothing to plan: the drafter that was named, else the first."""
        if not k:
            return NOBODY
        name = self._stream(self._named).drafter
        return Ask(name, name, k, tree=self._is_tree(name), stream=self._named)

    def offers(self, context: Context, most: int) -> list[Offer]:
        """Who can be asked for at most `most` draft tokens after `context`."""
        self._lookup = ngram.lookup(context.ids, most)
        own = self._own(most) if self._named in (None, OWN) else []
        return [*own, *self._others(len(context), most)]

    def ask(self, offer: Offer | None, k: int) -> Ask:
        """What `planner.choose` made of the offers."""
        if offer is None or not k:
            return NOBODY
        drafter = offer.source.partition(":")[0]
        return Ask(offer.source, drafter, k, offer.tree, offer.local, None if offer.local else drafter)

    async def draft(
        self, ask: Ask, context: Context, cycle: int, traceparent: str, tasks: asyncio.TaskGroup
    ) -> Drafted:
        """Never raises for a drafter's fault: another draft stands in."""
        if not ask.k:
            return Drafted(NO_DRAFT, 0.0)
        if not ask.local:
            return await self._stream(ask.stream).draft(context, cycle, ask.k, traceparent, tasks)
        own = Draft(DraftTree.chain(self._lookup.ids[: ask.k]), drafter=OWN, score=self._lookup.score(ask.k))
        missing = self._named is None and not self._served.now()
        return Drafted(own, 0.0, "no_drafter" if missing else None)

    def _own(self, most: int) -> list[Offer]:
        matched = self._lookup.matched
        return [_offer(OWN, most, matched, local=True)] if matched else []

    def _others(self, length: int, most: int) -> list[Offer]:
        """A replica's n-gram knows no more than one's own. Who reads hidden states waits for the first of them: a draft
        of nothing would be held against it."""
        served = self._served.now()
        if self._named is not None:
            if self._named not in served and self._named != OWN:
                return [Offer(self._named, most)]  # the cycle falls back, and says why
            served = {name: drafter for name, drafter in served.items() if name == self._named}
        sighted = not self._features.empty
        return [
            self._offer(drafter, length, most)
            for name, drafter in served.items()
            if name != OWN and (sighted or drafter.blind)
        ]

    def _offer(self, drafter: ServedDrafter, length: int, most: int) -> Offer:
        matched = self._lookup.matched if drafter.name in LOOKUPS else 0
        most = max(0, min(most, drafter.nodes, drafter.window - length))
        return _offer(drafter.name, most, matched, drafter.tree, drafter.shares)

    def _stream(self, name: str | None) -> Drafting:
        if name not in self._streams:
            self._streams[name] = self._open(name)
        return self._streams[name]

    def _is_tree(self, name: str) -> bool:
        drafter = self._served.now().get(name)
        return drafter is not None and drafter.tree


@lru_cache(maxsize=1024)
def _offer(
    drafter: str, most: int, matched: int, tree: bool = False, shares: bool = False, local: bool = False
) -> Offer:
    """The same offers come in cycle after cycle, several in each."""
    seen = next((f":{name}" for least, name in MATCHES if matched >= least), "") if matched else ""
    return Offer(drafter + seen, most, tree, matched, shares, local)
