"""What `--draft` of the commands means: entries for the drafter processes, with models made ready and the names of
shipped draft folders resolved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specdec.core.errors import ConfigError
from specdec.edge.model_folder import model_folder

SHIPPED = Path(__file__).parents[2] / "models"
HELP = (
    "comma separated: ngram (default); suffix; lm:MODEL, a smaller model or a draft folder; first:N, the target's "
    "first N layers with its own head; self:int8, the target's int8 copy; medusa:FOLDER, eagle:FOLDER, eagle2:FOLDER, "
    "trained for the target; lm, medusa, eagle or eagle2 alone: the one shipped for smollm2; none. n-gram drafts are "
    "served beside them"
)
_FREE = ("ngram", "suffix")  # no weights, no argument
_TRAINED = {"lm": "lm", "medusa": "medusa", "eagle": "eagle", "eagle2": "eagle"}  # name: ending of its shipped folder
_SHIPPED_FOR = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class DraftEntries:
    """entries: as `--drafters` of a drafter process takes them, () for no drafters. num_layers: of its `lm`, None:
    all."""

    entries: tuple[str, ...] = ("ngram",)
    num_layers: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.partition(":")[0] for entry in self.entries)

    @property
    def has_weights(self) -> bool:
        return any(name not in _FREE for name in self.names)


NGRAM = DraftEntries()


async def draft_entries(draft: str, target: str) -> DraftEntries:
    """draft: as HELP says. target: the target's folder. Raises ConfigError naming the part that cannot be meant, or a
    model that cannot be made ready."""
    if draft == "none":
        return DraftEntries(())
    num_layers, entries = None, []
    for part in draft.split(","):
        name, colon, argument = part.strip().partition(":")
        if name == "first":
            num_layers = _layers(draft, argument)
            entries.append(f"lm:{target}")
        else:
            entries.append(await _entry(name, argument if colon else None, target, draft))
    found = DraftEntries(tuple(entries), num_layers)
    twice = {name for name in found.names if found.names.count(name) > 1}
    if twice:
        raise ConfigError("draft", draft, f"names {', '.join(sorted(twice))} twice (first:N is an lm)")
    return found if "ngram" in found.names else DraftEntries((*entries, "ngram"), num_layers)


async def _entry(name: str, argument: str | None, target: str, draft: str) -> str:
    if (name in _FREE or name == "self") and argument is None:
        return name
    if name == "self" and argument:
        return f"self:{argument}"
    if name not in _TRAINED or argument == "":
        raise ConfigError("draft", draft, f"give {HELP}")
    if argument is None:
        return f"{name}:{_shipped(name, target, draft)}"
    if (folder := _draft_folder(argument)) is not None:
        return f"{name}:{folder}"
    if name != "lm":
        raise ConfigError("draft", draft, f"{argument} is no draft folder: it has no draft.json")
    return f"lm:{await model_folder(argument)}"


def _draft_folder(argument: str) -> Path | None:
    folder = Path(argument).expanduser()
    return folder.resolve() if (folder / "draft.json").is_file() else None


def _shipped(name: str, target: str, draft: str) -> Path:
    folder = SHIPPED / f"{_SHIPPED_FOR}-{_TRAINED[name]}"
    if not Path(target).name.lower().startswith(_SHIPPED_FOR):
        raise ConfigError("draft", draft, f"none is shipped for {Path(target).name}: give {name}:FOLDER")
    if not folder.is_dir():
        raise ConfigError("draft", draft, f"there is no {folder}: train one (docs/drafting.md), give {name}:FOLDER")
    return folder


def _layers(draft: str, count: str) -> int:
    if not (count.isascii() and count.isdigit() and int(count) > 0):
        raise ConfigError("draft", draft, "first:N needs N layers, at least 1")
    return int(count)
