"""A cluster under load: discrete events, one for each batch, from the first arrival to the last token."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from benchmarks.autoscale.drafter import Drafter
from benchmarks.autoscale.hpa import SYNC
from benchmarks.autoscale.manifests import Scaler
from benchmarks.autoscale.outcome import COORDINATOR, DRAFT, TARGET, Design, Moment, Outcome, Settings
from benchmarks.autoscale.pods import Pod
from benchmarks.autoscale.pool import Pool
from benchmarks.autoscale.samples import Samples, Series
from benchmarks.autoscale.scrape import of_coordinators, of_replicas
from benchmarks.autoscale.sessions import Plans, Session, accepted
from benchmarks.autoscale.times import Times
from benchmarks.autoscale.traces import Generation
from benchmarks.autoscale.verifier import Verifier

SCRAPE = 10.0  # seconds, as the ServiceMonitor has it
COME_AGAIN = 1.0  # seconds after which a client that was refused tries again
ANY = 1 << 30


class Simulation:
    """One design under one load, from a seed: `run` tells what came of it."""

    def __init__(
        self,
        design: Design,
        scalers: Mapping[str, Scaler],
        times: Times,
        load: Sequence[Generation],
        settings: Settings,
        seed: int,
    ) -> None:
        self.now = 0.0
        self.outcome = Outcome(design)
        self._design, self._times, self._settings = design, times, settings
        self._uniform = random.Random(seed).random
        self._plans = Plans(times, settings.max_draft)
        self._load = iter(load)
        self._coming = True
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._samples = Samples()
        self._seen = (0, 0, 0)  # waits, draft waits, tokens until the last moment
        self._active: set[Session] = set()
        self._verifiers: dict[Pod, Verifier] = {}
        self._drafters: dict[Pod, Drafter] = {}
        starts = {TARGET: times.target_start, DRAFT: times.draft_start, COORDINATOR: 0.0}
        rng = random.Random(seed + 1)
        self._pools = {
            role: Pool(scalers[role], starts[role], settings.fixed.get(role), partial(self._pod, role), rng)
            for role in design.pools
        }

    def at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), act))

    def run(self) -> Outcome:
        self._next_arrival()
        self.at(SCRAPE, self._scrape)
        self.at(SYNC, self._sync)
        while self._active or self._coming:
            self.now, _, act = heapq.heappop(self._events)
            act()
        outcome = self.outcome
        outcome.end = self.now
        for role, pool in self._pools.items():
            outcome.pod_seconds[role] = pool.pod_seconds(self.now)
            outcome.changes[role] = pool.changes
        return outcome

    # Generations

    def _next_arrival(self) -> None:
        generation = next(self._load, None)
        self._coming = generation is not None
        if generation is not None:
            self.at(generation.arrives, partial(self._begin, generation))

    def _begin(self, generation: Generation) -> None:
        session = Session(generation, generation.prompt, generation.output)
        self._active.add(session)
        self.outcome.asked += generation.output
        self._next_arrival()
        self._cycle([session])

    def _cycle(self, sessions: Sequence[Session]) -> None:
        """The next cycle of each: to its drafter, or straight to its verifier."""
        asking: dict[Drafter, list[Session]] = {}
        plain: list[Session] = []
        for session in sessions:
            if not self._place(session):
                self.outcome.refusals += 1
                self.at(self.now + COME_AGAIN, partial(self._cycle, [session]))
                continue
            session.cycles += 1
            session.k = session.wanted_draft = self._plans.choose(session) if self._design.drafts else 0
            if session.k and session.drafter is None:
                self._fall_back(session, "no_drafter")
            if session.k and session.drafter is not None:
                asking.setdefault(session.drafter, []).append(session)
            else:
                plain.append(session)
        for drafter, those in asking.items():
            self.at(self.now + self._times.draft_way / 2, partial(drafter.arrive, those))
        if plain:
            self._verify(plain)

    def _fall_back(self, session: Session, cause: str) -> None:
        self.outcome.fallbacks[cause] += 1
        session.k = 0

    def _drafted(self, sessions: list[Session]) -> None:
        self.at(self.now + self._times.draft_way / 2, partial(self._take_drafts, sessions))

    def _take_drafts(self, sessions: list[Session]) -> None:
        """One that comes later than it was waited for is none; its session is late by the difference, too."""
        for session in sessions:
            seconds = self.now - session.asked
            if seconds > session.draft_budget:
                self._fall_back(session, "late")
            elif session.drafter is not None:
                session.drafted(seconds, session.drafter.batch)
        self._verify(sessions)

    def _verify(self, sessions: Sequence[Session]) -> None:
        there: dict[Verifier, list[Session]] = {}
        for session in sessions:
            assert session.verifier is not None, "a cycle begins with a place"
            there.setdefault(session.verifier, []).append(session)
        for verifier, those in there.items():
            verifier.arrive(those)

    def _verified(self, sessions: list[Session]) -> None:
        """Accepts and commits: `verify_way` is over before the next cycle begins."""
        going = []
        for session in sessions:
            self._accept(session)
            if session.wanted:
                going.append(session)
            else:
                self._end(session)
        if going:
            self.at(self.now + self._times.verify_way, partial(self._cycle, going))

    def _accept(self, session: Session) -> None:
        """Replicas keep what they computed of tokens that came true."""
        counts = self.outcome.counts
        right = accepted(session.generation.alpha, session.k, self._uniform)
        tokens = min(right + 1, session.wanted)
        counts["specdec_cycles_total"] += 1
        counts["specdec_num_drafts_total"] += session.k > 0
        counts["specdec_num_draft_tokens_total"] += session.k
        counts["specdec_num_accepted_tokens_total"] += right
        counts["specdec_num_emitted_tokens_total"] += tokens
        session.held = session.context + min(right, tokens - 1)
        if session.k:
            session.draft_held = session.context + min(right, session.k - 1)
        if session.wanted == session.generation.output:
            self.outcome.first_tokens.append(self.now - session.generation.arrives)
        session.context += tokens
        session.wanted -= tokens

    def _end(self, session: Session) -> None:
        self.outcome.paces.append(session.generation.output / (self.now - session.generation.arrives))
        self._active.discard(session)
        for replica in (session.verifier, session.drafter):
            if replica is not None:
                replica.leave(session)

    # Pods

    def _pod(self, role: str, ready: float) -> Pod:
        pod = Pod(next(self._order), self.now, ready)
        if role == TARGET:
            kv = self._settings.kv_tokens
            self._verifiers[pod] = Verifier(pod, self._times, self, kv, self._verified, self.outcome.waits)
        if role == DRAFT or (role == TARGET and self._design.paired):
            own = pod if role == DRAFT else Pod(pod.number, self.now, ready)
            self._drafters[pod] = Drafter(own, self._times, self, self._drafted, self.outcome.draft_waits)
        return pod

    def _place(self, session: Session) -> bool:
        """Sessions stay where they are until that pod is to go. False: no verifier takes another one."""
        now = self.now
        if session.verifier is not None and session.verifier.pod.gone(now):
            session.verifier.leave(session)
            if self._design.paired and session.drafter is not None:
                session.drafter.leave(session)
        if session.drafter is not None and session.drafter.pod.gone(now):
            session.drafter.leave(session)
        if session.verifier is None:
            pod = self._pools[TARGET].less_pressed(now, self._settings.max_sessions)
            if pod is None:
                return False
            session.verifier = self._verifiers[pod]
            session.verifier.pod.sessions.add(session)
        if session.drafter is None and self._design.drafts:
            own = self._design.paired
            free = session.verifier.pod if own else self._pools[DRAFT].less_pressed(now, ANY)
            if free is not None:
                session.drafter = self._drafters[free]
                session.drafter.pod.sessions.add(session)
        return True

    # Scaling

    def _sync(self) -> None:
        for pool in self._pools.values():
            pool.scale(self.now, self._samples)
        self.at(self.now + SYNC, self._sync)

    def _scrape(self) -> None:
        for pool in self._pools.values():
            pool.bury(self.now)
        self._samples.scrape(self.now, self._series())
        self.outcome.moments.append(self._moment())
        self.at(self.now + SCRAPE, self._scrape)

    def _series(self) -> Iterator[Series]:
        for role, pool in self._pools.items():
            if role != COORDINATOR:
                yield from of_replicas(role, [pod for pod in pool.pods if pod.ready <= self.now], self._verifiers)
        coordinators = self._pools[COORDINATOR].ready(self.now)
        yield from of_coordinators(coordinators, len(self._active), self.outcome)

    def _moment(self) -> Moment:
        outcome = self.outcome
        waits, draft_waits = outcome.waits[self._seen[0] :], outcome.draft_waits[self._seen[1] :]
        tokens = outcome.tokens - self._seen[2]
        self._seen = (len(outcome.waits), len(outcome.draft_waits), outcome.tokens)
        return Moment(
            self.now,
            {role: (len(pool.ready(self.now)), len(pool.pods)) for role, pool in self._pools.items()},
            sum(waits) / max(1, len(waits)),
            sum(draft_waits) / max(1, len(draft_waits)),
            len(waits),
            len(self._active),
            tokens,
        )
