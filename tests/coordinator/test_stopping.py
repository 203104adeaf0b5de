"""Where a turn ends inside a block, and what text may be sent until then."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from coordinator.stopping import Emission, StopMatcher, TurnOutput
from coordinator.token_pieces import TokenPieces
from coordinator.turn import Turn
from specdec.core.sampling import SamplingParams
from tests.toy_tokenizers import toy_tokenizer

EOS, EOT, UNK = 0, 1, 2
BYTES = TokenPieces(toy_tokenizer("byte_level"))
FAR = 10_000


@dataclass(frozen=True)
class Words:
    """A vocabulary of the given words: each one token, joined without spaces."""

    pieces: TokenPieces
    id_of: dict[str, int]

    @staticmethod
    def of(*words: str) -> Words:
        id_of = {w: i for i, w in enumerate(dict.fromkeys(["</s>", "<|eot|>", "<unk>", *words]))}
        tokenizer = Tokenizer(models.WordLevel(id_of, unk_token="<unk>"))
        tokenizer.decoder = decoders.Fuse()
        tokenizer.add_special_tokens(["</s>", "<|eot|>"])
        return Words(TokenPieces(tokenizer), id_of)

    def ids(self, *words: str) -> list[int]:
        return [self.id_of[w] for w in words]


ABC = Words.of("a", "b", "c", "ab", "abc", " ")


def turn(
    stop: Sequence[str] = (),
    max_tokens: int = 100,
    min_tokens: int = 0,
    end_ids: Sequence[int] = (EOS,),
) -> Turn:
    params = SamplingParams(min_tokens=min_tokens, end_ids=tuple(end_ids))
    return Turn(params=params, max_tokens=max_tokens, seed=1, stop=tuple(stop), eos_ids=(EOS,))


def run(
    turn: Turn,
    pieces: TokenPieces,
    blocks: Sequence[Sequence[int]],
    context: Sequence[int] = (),
    max_context: int = FAR,
) -> tuple[list[int], list[str], TurnOutput, list[Emission]]:
    """Feeds the blocks until the turn ends: kept ids, the text that each released, the output, the
    emissions."""
    output = TurnOutput(turn, pieces, context, max_context)
    emissions: list[Emission] = []
    for block in blocks:
        if output.finish is not None:
            break
        emissions.append(output.accept(block))
    kept = [i for e in emissions for i in e.token_ids]
    return kept, [t for e in emissions for t in e.texts], output, emissions


def in_blocks(ids: Sequence[int], size: int) -> list[Sequence[int]]:
    return [ids[i : i + size] for i in range(0, len(ids), size)]


# --- stop strings -----------------------------------------------------------------------------------------------------


@pytest.mark.scenario("B36")
@pytest.mark.parametrize("words", [["a", "b"], ["ab"]])
def test_a_stop_string_that_completes_early_in_a_long_block_ends_the_turn_there(words: list[str]) -> None:
    """Six accepted fillers behind "ab" are neither emitted nor counted."""
    ids = ABC.ids(*words, *"cccccc")
    kept, texts, output, (emission,) = run(turn(["ab"]), ABC.pieces, [ids])
    assert kept == ids[: len(words)]
    assert ("".join(texts), output.finish, emission.stop, emission.cut_tokens) == ("", "stop", "ab", 6)
    assert last_tokens_searched(turn(["ab"]), ABC, ids) is False, "the injector no longer misses it"


def last_tokens_searched(turn: Turn, words: Words, block: list[int]) -> bool:
    """The fault of B36: only the last two tokens of a block are searched."""
    return any(stop in words.pieces.join(block[-2:]).decode() for stop in turn.stop)


@pytest.mark.scenario("B36")
def test_a_stop_string_across_two_blocks_ends_the_turn() -> None:
    """The previous block's last token and this block's first spell it."""
    kept, texts, output, emissions = run(turn(["ab"]), ABC.pieces, [ABC.ids("c", "a"), ABC.ids("b", "c", "c")])
    assert kept == ABC.ids("c", "a", "b")
    assert ("".join(texts), output.finish, emissions[-1].cut_tokens) == ("c", "stop", 2)


@pytest.mark.scenario("B37")
def test_ids_end_with_the_token_that_completes_the_stop_and_text_before_it() -> None:
    """As many texts as ids (logprobs go by ids); nothing kept whose text starts behind the stop."""
    words = Words.of("so", " ha", " ha ha", "!")
    for block in (["so", " ha", " ha", "!", "!"], ["so", " ha ha", "!", "!", "!"]):
        ids = words.ids(*block)
        kept, texts, _, _ = run(turn([" ha ha"]), words.pieces, [ids])
        assert "".join(texts) == "so" and len(texts) == len(kept)
        assert words.pieces.join(kept).decode() == "so ha ha"


@pytest.mark.scenario("B67")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_no_character_of_a_stop_is_sent_and_what_turns_out_different_is(size: int) -> None:
    """Tokens "DEF", "G", "HI", "J" in blocks of 1, 2 and 4."""
    words = Words.of("DEF", "G", "HI", "J", "DEFX")
    _, texts, output, _ = run(turn(["DEFGHIJ"]), words.pieces, in_blocks(words.ids("DEF", "G", "HI", "J"), size))
    assert ("".join(texts), output.finish) == ("", "stop")
    _, texts, output, _ = run(turn(["DEFGHIJ"]), words.pieces, in_blocks(words.ids("DEF", "G", "DEFX"), size))
    assert (texts, output.finish) == (["", "", "DEFGDEFX"], None)


@pytest.mark.scenario("B68")
def test_only_a_possible_stop_is_held_and_the_tail_is_sent_once() -> None:
    """Stop "<|sep|>": text without "<" is never late; text that ends with "<|se" comes whole with EOS."""
    words = Words.of("hello", " there", "<|se", "<", "p")
    _, texts, _, _ = run(turn(["<|sep|>"]), words.pieces, [words.ids("hello", " there", "p")])
    assert texts == ["hello", " there", "p"]
    blocks = [words.ids("hello", "<|se"), [EOS]]
    _, texts, output, _ = run(turn(["<|sep|>"]), words.pieces, blocks)
    assert (texts, output.finish) == (["hello", "", "<|se"], "stop")
    _, texts, output, _ = run(turn(["<|sep|>"], max_tokens=2), words.pieces, blocks)
    assert (texts, output.finish) == (["hello", "<|se"], "length")


@pytest.mark.scenario("B68")
def test_the_flushed_tail_is_searched_too() -> None:
    """An incomplete character becomes U+FFFD at the end, through the same path as all text."""
    half = toy_tokenizer("byte_level").encode("a🙂").ids[:-1]
    _, texts, output, emissions = run(turn(["\ufffd"], max_tokens=len(half)), BYTES, [half])
    assert ("".join(texts), output.finish, emissions[-1].stop) == ("a", "stop", "\ufffd")


@pytest.mark.parametrize(
    "stops, text, sent, stop",
    [
        (["abcd", "bc"], "xabcd", "xa", "bc"),  # the first to be complete
        (["bc", "abc"], "xabc", "x", "abc"),  # complete at once: the longest
        (["aab"], "aaab", "a", "aab"),  # falls back to a shorter beginning
        (["abab", "ba"], "abb", "abb", None),
        (["aa"], "xaaa", "x", "aa"),
    ],
)
def test_the_first_stop_to_be_complete_wins(stops: list[str], text: str, sent: str, stop: str | None) -> None:
    for size in range(1, len(text) + 1):
        matcher, released, found = StopMatcher(stops), "", None
        for part in (text[i : i + size] for i in range(0, len(text), size)):
            piece, found = matcher.push(part, may_stop=True)
            released += piece
            if found:
                break
        assert (released + ("" if found else matcher.release()), found) == (sent, stop)


# --- ids, limits ------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("B38")
@pytest.mark.scenario("B22")
@pytest.mark.parametrize("offset", range(6))
def test_eos_anywhere_in_a_block_ends_the_turn_with_itself(offset: int) -> None:
    """Kept is everything up to EOS and EOS itself, which has no text; what was accepted behind it is cut."""
    block = ABC.ids("a", "b", "c", "a", "b", "c")
    block[offset] = EOS
    kept, texts, output, (emission,) = run(turn(), ABC.pieces, [block])
    assert kept == block[: offset + 1]
    assert ("".join(texts), texts[-1]) == ("abcabc"[:offset], "")
    assert (output.finish, emission.stop, emission.cut_tokens) == ("stop", "", 5 - offset)


@pytest.mark.scenario("B23")
@pytest.mark.parametrize("sizes", [[4], [3, 1], [1, 3], [1, 1, 1, 1], [2, 2]])
def test_eos_is_kept_whether_accepted_recovered_or_bonus(sizes: list[int]) -> None:
    """As the last token of a block, within one, or alone: the same ids are committed."""
    ids = [*ABC.ids("a", "b", "c"), EOS]
    blocks, start = [], 0
    for size in sizes:
        blocks.append(ids[start : start + size])
        start += size
    assert run(turn(), ABC.pieces, blocks)[0] == ids


def test_a_stop_id_is_counted_and_not_shown() -> None:
    kept, texts, output, _ = run(turn(end_ids=[EOS, *ABC.ids("b")]), ABC.pieces, [ABC.ids("a", "b", "c")])
    assert (kept, texts, output.finish) == (ABC.ids("a", "b"), ["a", ""], "stop")


@pytest.mark.scenario("B39")
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_never_more_than_max_tokens_are_kept_or_asked_for(max_tokens: int) -> None:
    """`remaining` bounds the drafts: none is asked for where one token is left."""
    output = TurnOutput(turn(max_tokens=max_tokens), ABC.pieces, ABC.ids("a", "b"), FAR)
    assert output.remaining == max_tokens
    emission = output.accept(ABC.ids("a", "b", "c", "a"))
    assert len(emission.token_ids) == max_tokens and emission.finish == "length"
    assert (output.remaining, emission.cut_tokens) == (0, 4 - max_tokens)


@pytest.mark.scenario("B40")
def test_a_block_across_the_limit_delivers_exactly_what_is_counted() -> None:
    """max_tokens 8, blocks of 5: eight ids, eight texts, "length"."""
    kept, texts, output, emissions = run(turn(max_tokens=8), ABC.pieces, [ABC.ids(*"abcab"), ABC.ids(*"abcab")])
    assert (len(kept), "".join(texts), output.num_tokens) == (8, "abcababc", 8)
    assert (output.finish, emissions[-1].cut_tokens) == ("length", 2)


def test_the_end_of_the_context_is_a_limit() -> None:
    """A prompt of 58 in a context of 64 leaves 6 tokens, whatever max_tokens says."""
    kept, _, output, _ = run(turn(max_tokens=20), ABC.pieces, [ABC.ids(*"abcabcab")], ABC.ids("a") * 58, max_context=64)
    assert (len(kept), output.finish) == (6, "length")


def test_eos_as_the_last_token_allowed_is_a_stop() -> None:
    assert run(turn(max_tokens=2), ABC.pieces, [[*ABC.ids("a"), EOS]])[2].finish == "stop"


@pytest.mark.scenario("B41")
def test_a_stop_string_before_min_tokens_is_ordinary_text_and_one_after_it_counts() -> None:
    """["HI", EOS] with min_tokens 2; of two EOS ids neither ends a turn of fewer than 3 tokens."""
    words = Words.of("HI", "x")
    for block in (words.ids("HI", "HI", "x"), words.ids("x", "HI", "x")):
        kept, texts, output, _ = run(turn(["HI"], min_tokens=2), words.pieces, [block])
        assert (kept, output.finish) == (block[:2], "stop")
        assert "".join(texts) == ("HI" if block[0] == block[1] else "x")
    ids = [*words.ids("x", "x", "x"), EOT, *words.ids("x")]
    for early in (0, 1, 2):
        block = [EOS if i == early else token for i, token in enumerate(ids)]
        assert run(turn(min_tokens=3, end_ids=[EOS, EOT]), words.pieces, [block])[0] == block[:4]


def test_an_ignored_stop_may_be_the_beginning_of_one_that_counts() -> None:
    """ "aa" completes in token 1 (too early) and again, overlapping, in token 2: what was sent stays sent."""
    words = Words.of("aa", "a", "b")
    _, texts, output, _ = run(turn(["aa"], min_tokens=2), words.pieces, [words.ids("aa", "a", "b")])
    assert (texts, output.finish) == (["a", ""], "stop")


@pytest.mark.scenario("B42")
def test_a_turn_without_any_end_runs_to_max_tokens() -> None:
    """No EOS configured, or ignored, and no stop strings: end_ids is empty."""
    ids = ABC.ids(*"abcabcabca")
    ids[4] = EOS
    kept, texts, output, _ = run(turn(end_ids=[], max_tokens=10), ABC.pieces, in_blocks(ids, 3))
    assert (kept, "".join(texts), output.finish) == (ids, "abcacabca", "length")


def test_an_empty_block_changes_nothing() -> None:
    output = TurnOutput(turn(), ABC.pieces, [], FAR)
    assert output.accept([]) == Emission((), ())


def test_ids_come_as_arrays_too_and_leave_as_plain_integers() -> None:
    emission = TurnOutput(turn(), ABC.pieces, np.array([3], np.uint32), FAR).accept(np.array([4, 0], np.uint32))
    assert emission.token_ids == (4, 0) and all(type(i) is int for i in emission.token_ids)
    assert (emission.text, emission.finish) == ("b", "stop")


def test_nothing_is_accepted_behind_the_end() -> None:
    output = TurnOutput(turn(), ABC.pieces, [], FAR)
    output.accept([EOS])
    with pytest.raises(AssertionError, match="behind the end"):
        output.accept(ABC.ids("a"))


# --- the slow oracle --------------------------------------------------------------------------------------------------

STOPS = st.lists(st.text("ab é🙂", min_size=1, max_size=4), max_size=3)
TEXTS = st.text("ab é🙂", max_size=12)


def text_so_far(context: Sequence[int], ids: Sequence[int], end: bool) -> str:
    """Decoded from scratch; a character that is not whole is left out until the end."""

    def decoded(token_ids: Sequence[int]) -> str:
        return codecs.getincrementaldecoder("utf-8")("replace").decode(BYTES.join(token_ids), end)

    return decoded([*context, *ids])[len(decoded(context)) :]


def first_complete(stops: Sequence[str], text: str, after: int) -> tuple[int, str] | None:
    """(start, stop) of the match that ends first behind position `after`; of several the longest."""
    ends = [(end, -len(s), s) for s in stops for end in range(after + 1, len(text) + 1) if text[:end].endswith(s)]
    if not ends:
        return None
    end, length, stop = min(ends)
    return end + length, stop


def oracle(turn: Turn, context: Sequence[int], ids: Sequence[int], limit: int) -> tuple[int, str, str | None, str]:
    """(kept ids, text, finish, stop), token by token, everything decoded and searched anew each time."""
    before = ""
    for n, token in enumerate(ids, start=1):
        ends = token in turn.params.end_ids and n > turn.params.min_tokens
        shown = ids[: n - 1] if ends else ids[:n]
        for end in (False, True):
            if end and not (ends or n == limit):
                continue
            text = text_so_far(context, shown, end)
            match = first_complete(turn.stop, text, len(before)) if n >= turn.params.min_tokens else None
            if match:
                return n, text[: match[0]], "stop", match[1]
            before = text
            if end:
                return n, text, "stop" if ends else "length", ""
    return len(ids), before, None, ""


@st.composite
def cases(draw: Callable[..., Any]) -> tuple[Turn, list[int], list[int], list[int]]:
    encode = toy_tokenizer("byte_level").encode
    text, tail = draw(TEXTS), draw(st.integers(0, 2))
    ids = encode(text).ids
    ids = ids[: len(ids) - tail] if tail < len(ids) else ids  # may end amid a character
    for at in draw(st.lists(st.integers(0, 16), max_size=2)):
        ids.insert(min(at, len(ids)), draw(st.sampled_from([1, 2])))
    params = SamplingParams(
        min_tokens=draw(st.integers(0, 6)), end_ids=tuple(draw(st.sampled_from([(2,), (1, 2), ()])))
    )
    chosen = Turn(params=params, max_tokens=draw(st.integers(6, 20)), seed=0, stop=tuple(draw(STOPS)))
    return chosen, encode(draw(TEXTS)).ids, ids, sorted(draw(st.lists(st.integers(0, 20), max_size=5)))


@settings(derandomize=True, deadline=None)
@given(case=cases())
def test_every_split_into_blocks_keeps_and_sends_what_the_oracle_says(
    case: tuple[Turn, list[int], list[int], list[int]],
) -> None:
    chosen, context, ids, cuts = case
    bounds = [0, *(c for c in cuts if c <= len(ids)), len(ids)]
    blocks = [ids[a:b] for a, b in pairwise(bounds)]
    kept, texts, output, emissions = run(chosen, BYTES, blocks, context)
    count, text, finish, stop = oracle(chosen, context, ids, chosen.max_tokens)
    assert (kept, output.finish) == (ids[:count], finish)
    assert emissions[-1].stop == stop
    sent = "".join(texts)
    if finish is not None:
        assert sent == text
    else:
        held = max((n for s in chosen.stop for n in range(len(s)) if text.endswith(s[:n])), default=0)
        assert sent == text[: len(text) - held], "held is what could be the start of a stop, and nothing else"


@settings(derandomize=True, deadline=None)
@given(case=cases(), data=st.data())
def test_a_resume_from_any_token_sends_what_is_missing(
    case: tuple[Turn, list[int], list[int], list[int]], data: st.DataObject
) -> None:
    """Replayed in blocks of its own: text(all) - text(n)."""
    chosen, context, ids, _ = case
    kept, texts, output, _ = run(chosen, BYTES, [ids], context)
    n = data.draw(st.integers(0, len(kept)))
    replayed, missing, again, _ = run(chosen, BYTES, [kept[:n], kept[n:]], context)
    assert (replayed, again.finish) == (kept, output.finish)
    assert "".join(texts) == "".join(texts[:n]) + "".join(missing[n:])


@settings(derandomize=True, deadline=None)
@given(case=cases())
def test_what_is_sent_is_never_taken_back(case: tuple[Turn, list[int], list[int], list[int]]) -> None:
    chosen, context, ids, _ = case
    kept, texts, output, _ = run(chosen, BYTES, [[i] for i in ids], context)
    if output.finish is not None:
        final = oracle(chosen, context, ids, chosen.max_tokens)[1]
        for n in range(len(kept) + 1):
            assert final.startswith("".join(texts[:n]))
