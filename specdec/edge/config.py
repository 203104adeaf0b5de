"""One flat frozen dataclass per process is its configuration: every field is a flag and an environment
variable.

    @dataclass(frozen=True, slots=True)
    class Config:
        port: int = field(default=50051, metadata={"help": "gRPC port, 0: any", "ge": 0, "le": 65535})

makes `--port` and `PORT`; the flag wins. Field types: int, float, bool, str, tuple[str, ...] (comma
separated), and Optional of these (the word `none`). Metadata: help; ge, le (numbers); choices; secret (never
shown)."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from specdec.core.errors import ConfigError


class Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


C = TypeVar("C", bound=Dataclass)

_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_USERINFO = re.compile(r"(?<=://)[^\s]*@")
_SECRET_QUERY = re.compile(r"([?&][^=&#\s]*(?:pass|secret|token|key)[^=&#\s]*=)[^&#\s]*", re.IGNORECASE)
_BOOL = re.compile("true|false")
_HIDDEN = "***"


def load_config(cls: type[C], argv: list[str], env: Mapping[str, str], prog: str) -> C:
    """`read_config`; a ConfigError becomes one sentence on stderr and exit code 2."""
    try:
        return read_config(cls, argv, env, prog)
    except ConfigError as error:
        exit_with(error, prog)


def exit_with(error: ConfigError, prog: str) -> NoReturn:
    """Also for settings found wrong later, such as a target that does not fit the drafter."""
    print(f"{prog}: {error}", file=sys.stderr)
    raise SystemExit(2)


def read_config(cls: type[C], argv: list[str], env: Mapping[str, str], prog: str) -> C:
    """Raises ConfigError for an unknown flag, a missing or malformed value, one out of range, or whatever the
    class's own `validate()` refuses."""
    types = get_type_hints(cls)
    flags = vars(_parser(cls, prog).parse_args(argv))
    values = {f.name: _value(f, types[f.name], flags[f.name], env) for f in fields(cls)}
    config = cls(**values)
    validate = getattr(config, "validate", None)
    if validate is not None:
        validate()
    return config


def describe(config: Dataclass) -> dict[str, str]:
    """Effective values, as text that `read_config` would take again; secrets are left out, those in URLs
    too."""
    return {f.name: _shown(f, getattr(config, f.name)) for f in fields(config)}


def redact(text: str) -> str:
    """A URL without its user name, password and keys."""
    return _SECRET_QUERY.sub(rf"\g<1>{_HIDDEN}", _USERINFO.sub(f"{_HIDDEN}@", text))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        subject, _, rest = message.partition(": ")
        if subject == "unrecognized arguments":
            raise ConfigError("command line", rest.split()[0].split("=")[0], "no such flag; --help lists them")
        raise ConfigError(subject, None, rest)


def _parser(cls: type[Dataclass], prog: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=prog, allow_abbrev=False)
    types = get_type_hints(cls)
    for f in fields(cls):
        flag = "--" + f.name.replace("_", "-")
        switch = _inner(types[f.name])[0] is bool
        parser.add_argument(
            flag,
            dest=f.name,
            metavar="VALUE",
            nargs="?" if switch else None,
            const="true" if switch else None,
            help=_help(f, types[f.name]).replace("%", "%%"),
        )
    return parser


def _help(f: Field[Any], annotation: Any) -> str:
    default = _default(f)
    tail = "required" if default is MISSING else f"default {_shown(f, default)}"
    return f"{f.metadata.get('help', '')} ({_expected(f, annotation)}; {f.name.upper()}; {tail})"


def _value(f: Field[Any], annotation: Any, flag: str | None, env: Mapping[str, str]) -> Any:
    text = flag if flag is not None else env.get(f.name.upper())
    if text is not None:
        return _parse(f, annotation, text)
    default = _default(f)
    if default is MISSING:
        where = f"--{f.name.replace('_', '-')} or {f.name.upper()}"
        raise ConfigError(f.name, None, f"required: {_expected(f, annotation)}, by {where}")
    return default


def _parse(f: Field[Any], annotation: Any, text: str) -> Any:
    inner, optional = _inner(annotation)
    if optional and text == "none":
        return None
    try:
        values = _PARSERS[inner](text)
        for value in values if isinstance(values, tuple) else (values,):
            _check(f, value)
    except ValueError:
        shown = _HIDDEN if f.metadata.get("secret") else redact(text)
        raise ConfigError(f.name, shown, f"must be {_expected(f, annotation)}") from None
    return values


def _check(f: Field[Any], value: Any) -> None:
    ge, le, choices = (f.metadata.get(key) for key in ("ge", "le", "choices"))
    if (ge is not None and value < ge) or (le is not None and value > le):
        raise ValueError
    if choices is not None and value not in choices:
        raise ValueError


def _full(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError
    return text


def _parse_tuple(text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(",")) if text else ()
    if not all(items):
        raise ValueError
    return items


_PARSERS: Mapping[Any, Callable[[str], Any]] = {
    int: lambda text: int(_full(_INT, text)),
    float: lambda text: float(_full(_FLOAT, text)),
    bool: lambda text: _full(_BOOL, text) == "true",
    str: str,
    tuple[str, ...]: _parse_tuple,
}
_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    tuple[str, ...]: "a comma-separated list",
}


def _inner(annotation: Any) -> tuple[Any, bool]:
    """(the type itself, whether None is allowed too)"""
    if get_origin(annotation) in (Union, UnionType):
        (inner,) = (a for a in get_args(annotation) if a is not NoneType)
        return inner, True
    return annotation, False


def _expected(f: Field[Any], annotation: Any) -> str:
    """For people: the type and the range."""
    inner, optional = _inner(annotation)
    ge, le, choices = (f.metadata.get(key) for key in ("ge", "le", "choices"))
    text = _NAMES[inner]
    if choices is not None:
        text = f"{'items' if inner is tuple[str, ...] else 'one'} of {', '.join(map(str, choices))}"
    elif ge is not None and le is not None:
        text += f" from {ge} to {le}"
    elif ge is not None or le is not None:
        text += f", at least {ge}" if ge is not None else f", at most {le}"
    return text + (", or none" if optional else "")


def _default(f: Field[Any]) -> Any:
    return f.default_factory() if f.default_factory is not MISSING else f.default


def _shown(f: Field[Any], value: Any) -> str:
    if f.metadata.get("secret"):
        return _HIDDEN
    if isinstance(value, tuple):
        return ",".join(redact(item) for item in value)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return redact(str(value))
