"""Where newly accepted tokens end the turn, and what text they release. A function of the turn and its
committed ids: however the ids are cut into blocks, and whoever replays them, the same tokens are kept and the
same text is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.detokenizer import OutputText
from coordinator.token_pieces import TokenPieces
from coordinator.turn import Turn
from specdec.core.tree import Ids


@dataclass(frozen=True, slots=True)
class Emission:
    """token_ids: the kept ids; texts: what each of them releases (it may hold earlier tokens' bytes, or be
    empty). finish: "stop" or "length" if the last kept token ends the turn. stop: the stop string that
    matched, else "". cut_tokens: ids behind the end, never to be committed."""

    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    finish: str | None = None
    stop: str = ""
    cut_tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)


class TurnOutput:
    """The output of one turn of one choice. context_ids: everything before its first token; max_context:
    tokens that a context holds, this turn's output included.

    A resume from n: feed the stored ids, drop what the first n released, send the rest. That is text(all) -
    text(n), held-back text included."""

    def __init__(self, turn: Turn, pieces: TokenPieces, context_ids: Sequence[int] | Ids, max_context: int) -> None:
        self._end_ids = frozenset(turn.params.end_ids)
        self._min_tokens = turn.params.min_tokens
        self._limit = min(turn.max_tokens, max_context - len(context_ids))
        self._text = OutputText(pieces, context_ids)
        self._matcher = StopMatcher(turn.stop)
        self.num_tokens = 0
        self.finish: str | None = None

    @property
    def remaining(self) -> int:
        """Tokens until max_tokens or the end of the context. A cycle with k draft tokens emits up to k + 1:
        ask for at most remaining - 1."""
        return self._limit - self.num_tokens

    def accept(self, token_ids: Sequence[int] | Ids) -> Emission:
        """Takes a block of accepted ids, in order, up to the one that ends the turn."""
        assert self.finish is None, f"{len(token_ids)} tokens behind the end of the turn"
        texts: list[str] = []
        stop = ""
        for token_id in token_ids:
            text, stop = self._accept_one(int(token_id))
            texts.append(text)
            if self.finish is not None:
                break
        kept = tuple(int(i) for i in token_ids[: len(texts)])
        return Emission(kept, tuple(texts), self.finish, stop, cut_tokens=len(token_ids) - len(kept))

    def _accept_one(self, token_id: int) -> tuple[str, str]:
        """The text that the token releases, and the stop string that it completes ("": none)."""
        assert self.remaining > 0, "a token behind max_tokens or the end of the context"
        ends = token_id in self._end_ids and self.num_tokens >= self._min_tokens
        self.num_tokens += 1
        stops_count = self.num_tokens >= self._min_tokens
        released, stop = "", None
        if not ends:
            released, stop = self._matcher.push(self._text.push([token_id])[0], stops_count)
        if stop is None and (ends or self.remaining == 0):
            self.finish = "stop" if ends else "length"
            tail, stop = self._matcher.push(self._text.finish(), stops_count)
            released += tail + ("" if stop else self._matcher.release())
        if stop is not None:
            self.finish = "stop"
        return released, stop or ""


class StopMatcher:
    """Searches a growing text for stop strings. Holds back the longest end of the text that could become one,
    and nothing else. The first to be complete wins, the longest of those complete at the same character.

    One Knuth-Morris-Pratt automaton per string: constant time per character and string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""

    def push(self, text: str, may_stop: bool) -> tuple[str, str | None]:
        """The text that can be sent, and the stop string that the text completes, which is cut with all
        behind it. Not may_stop: what is completed now is ordinary text."""
        if not self._stops:
            return text, None
        buffer = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            complete = self._step(char)
            if complete and may_stop:
                self._held = ""
                return buffer[: end - len(complete)], complete
        keep = len(buffer) - max(self._matched)
        self._held = buffer[keep:]
        return buffer[:keep], None

    def release(self) -> str:
        """The held text: nothing follows that could complete a stop string."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> str:
        """Advances every automaton; the longest string complete at this character, else ""."""
        complete = ""
        for i, stop in enumerate(self._stops):
            matched, borders = self._matched[i], self._borders[i]
            while matched and stop[matched] != char:
                matched = borders[matched]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop):
                complete = max(complete, stop, key=len)
                matched = borders[matched]
            self._matched[i] = matched
        return complete


def _borders(stop: str) -> list[int]:
    """For each n in 0..len(stop): the longest proper prefix of stop[:n] that is also its end."""
    borders = [0, 0]
    for char in stop[1:]:
        length = borders[-1]
        while length and stop[length] != char:
            length = borders[length]
        borders.append(length + 1 if stop[length] == char else 0)
    return borders
