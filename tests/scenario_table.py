"""Writes docs/scenarios.md, the table of faults that others shipped and the tests that hold us to better.

python -m tests.scenario_table"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "scenarios.md"
HEAD = """# Faults that others shipped

Each row is a fault reported in public on some system for speculative decoding or for streaming of language models,
and a test that would see it here. The ids are those of the list that the project collected before it began. This file
is written by `python -m tests.scenario_table`; a test keeps it fresh.

"""


@dataclass(frozen=True, order=True, slots=True)
class Entry:
    scenario: str
    test: str
    sentence: str


def entries() -> list[Entry]:
    """Every marked test: by decorator, or by `pytestmark` for a whole module. Sorted."""
    found = [entry for path in sorted((ROOT / "tests").rglob("test_*.py")) for entry in _of_file(path)]
    return sorted(found, key=lambda entry: (int(entry.scenario[1:]), entry.test))


def render() -> str:
    rows = entries()
    count = len({row.scenario for row in rows})
    lines = [f"{count} of them are met here.", "", "| id | what is shown | test |", "|---|---|---|"]
    lines += [f"| {row.scenario} | {row.sentence} | `{row.test}` |" for row in rows]
    return HEAD + "\n".join(lines) + "\n"


def _of_file(path: Path) -> Iterator[Entry]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = path.relative_to(ROOT / "tests").as_posix()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        sentence = (ast.get_docstring(node) or node.name.removeprefix("test_").replace("_", " ")).split("\n\n")[0]
        for scenario in _marks(node.decorator_list):
            yield Entry(scenario, f"{name}::{node.name}", " ".join(sentence.split()).replace("|", "\\|"))


def _marks(decorators: list[ast.expr]) -> Iterator[str]:
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.scenario":
            for argument in decorator.args:
                assert isinstance(argument, ast.Constant), "scenario ids are plain strings"
                yield str(argument.value)


if __name__ == "__main__":
    TABLE.write_text(render(), encoding="utf-8")
    print(f"{len(entries())} tests of {len({e.scenario for e in entries()})} scenarios: {TABLE}")
