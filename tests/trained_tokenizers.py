"""A byte-level tokenizer learned from a few lines: another order of bytes and other merges than the toy one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_LINES = (
    "the lighthouse keeper lit the lamp and the storm went on",
    "hello there, hello again, the other one said",
    "def add(a, b): return a + b",
    "in the end all that is lent is lent again",
)


def byte_level(specials: Sequence[str] = ("<|endoftext|>",), vocab_size: int = 300) -> Tokenizer:
    """A new object each time. Specials have the lowest ids."""
    return Tokenizer.from_str(_trained(tuple(specials), vocab_size))


def save_byte_level(folder: Path, specials: Sequence[str] = ("<|endoftext|>",)) -> Path:
    """tokenizer.json alone, beside whatever is there."""
    byte_level(specials).save(str(folder / "tokenizer.json"))
    return folder


@cache
def _trained(specials: tuple[str, ...], vocab_size: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    text: str = tokenizer.to_str()
    return text
