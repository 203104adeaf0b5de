"""The flags of one generation, for every command that makes one: a flag per field of GenerateRequest."""

from __future__ import annotations

import argparse
import os
from typing import Any

from specdec.edge.client import Client, GenerateFields
from specdec.edge.tls import Tls, read_tls

_NUMBERS: tuple[tuple[str, type, str], ...] = (
    ("max_tokens", int, "output tokens at most"),
    ("min_tokens", int, "output tokens before which nothing ends the turn"),
    ("temperature", float, "0: greedy"),
    ("top_k", int, "keep the k likeliest tokens; 0: all"),
    ("top_p", float, "keep the likeliest tokens with this mass; 1: all"),
    ("min_p", float, "drop what is less likely than this share of the likeliest; 0: nothing"),
    ("repetition_penalty", float, "over prompt and output; 1: none"),
    ("presence_penalty", float, "over the output; 0: none"),
    ("frequency_penalty", float, "over the output, per occurrence; 0: none"),
    ("seed", int, "makes the output a function of prompt, parameters and model alone"),
    ("num_draft_tokens", int, "per cycle; 0: no speculation; unset: the coordinator decides"),
)
_NAMES = (
    ("drafter", "who drafts, by name; unset: auto"),
    ("verification", "rule: block, traversal, rejection, coupled, typical (lossy); unset: by the rule of the seed"),
)
_REPEATED: tuple[tuple[str, type, str], ...] = (
    ("stop", str, "text that ends the turn; may be given again"),
    ("stop_token_ids", int, "token id that ends the turn; may be given again"),
)


def add_connection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", default="127.0.0.1:50050", help="coordinator, host:port")
    parser.add_argument("--tls", action="store_true", help="encrypted, to a coordinator that serves so")
    parser.add_argument("--tls-ca", help="PEM file of the authority that signed its certificate; unset: the system's")
    parser.epilog = "A coordinator that wants a key gets the one in the environment, SPECDEC_API_KEY."
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for a whole generation")
    parser.add_argument(
        "--stats", action="store_true", help="colour tokens by origin, and show figures after the answer"
    )


def client_of(arguments: argparse.Namespace) -> Client:
    """For the flags of `add_connection`. Raises ConfigError."""
    tls = (read_tls(None, None, arguments.tls_ca) or Tls()) if arguments.tls or arguments.tls_ca else None
    return Client(arguments.address, api_key=os.environ.get("SPECDEC_API_KEY"), tls=tls)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling", "unset: the model's own generation_config")
    for name, kind, text in _NUMBERS:
        group.add_argument(_flag(name), type=kind, help=text)
    for name, text in _NAMES:
        group.add_argument(_flag(name), help=text)
    for name, kind, text in _REPEATED:
        group.add_argument(_flag(name), type=kind, action="append", help=text)
    group.add_argument("--ignore-eos", action="store_true", default=None, help="go on behind the end of text")
    group.add_argument(
        "--logit-bias", type=_bias, action="append", metavar="ID=BIAS", help="may be given again; -inf bans"
    )


def sampling_fields(arguments: argparse.Namespace) -> GenerateFields:
    names = [name for table in (_NUMBERS, _NAMES, _REPEATED) for name, *_ in table]
    fields: Any = {name: getattr(arguments, name) for name in (*names, "ignore_eos")}
    fields["logit_bias"] = dict(arguments.logit_bias) if arguments.logit_bias else None
    checked: GenerateFields = fields
    return checked


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give ID=BIAS, such as 42=-1.5") from None
