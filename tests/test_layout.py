"""DESIGN section 2: who may import whom, and how long a file may be."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("protos", "specdec.core", "specdec.edge", "specdec.lm", "coordinator", "draft_service", "target_service")
MAX_LINES = 300

# package: (packages of ours it may import besides itself, what it may import from outside; None: anything)
RULES: dict[str, tuple[set[str], set[str] | None]] = {
    "protos": (set(), {"google", "grpc"}),
    "specdec.core": (set(), {"numpy"}),
    "specdec.edge": (
        {"specdec.core", "protos"},
        {
            *("numpy", "google", "grpc", "grpc_status", "grpc_health", "grpc_reflection"),
            *("opentelemetry", "prometheus_client", "redis", "rich", "matplotlib"),
        },
    ),
    "specdec.lm": ({"specdec.core"}, {"numpy", "torch", "transformers", "safetensors", "gguf", "huggingface_hub"}),
    "coordinator": (
        {"specdec.core", "specdec.edge", "protos"},
        {"numpy", "google", "grpc", "opentelemetry", "redis", "tokenizers", "huggingface_hub", "jinja2"},
    ),
    "draft_service": ({"specdec.core", "specdec.edge", "specdec.lm", "protos"}, None),
    "target_service": ({"specdec.core", "specdec.edge", "specdec.lm", "protos"}, None),
}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package.replace(".", "/")).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str) -> Iterator[str]:
    """Every module a source imports, anywhere in it; for `from a import b` also a.b, which may be a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offences(package: str, source: str) -> list[str]:
    ours, outside = RULES[package]
    allowed = {package, *ours}
    found = []
    for name in imports(source):
        top = name.split(".")[0]
        owner = next((p for p in OURS if name == p or name.startswith(f"{p}.")), None)
        if owner is not None:
            lawful = owner in allowed
        elif top in sys.stdlib_module_names:
            lawful = True
        else:
            lawful = top != "specdec" and top != "tests" and (outside is None or top in outside)
        if not lawful:
            found.append(name)
    return found


@pytest.mark.parametrize("package", OURS)
def test_each_package_imports_only_what_it_may(package: str) -> None:
    found = {module_name(path): offences(package, path.read_text()) for path in sources(package)}
    assert found, "no sources"
    assert {module: names for module, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("specdec.core", "import grpc"),
        ("specdec.core", "from specdec.edge import codec"),
        ("specdec.edge", "def f():\n    from specdec.lm import model"),
        ("specdec.edge", "from coordinator.turn import Turn"),
        ("specdec.lm", "import specdec.edge.server"),
        ("coordinator", "import torch.nn as nn"),
        ("coordinator", "from transformers import AutoTokenizer"),
        ("coordinator", "from specdec import lm"),
        ("draft_service", "import target_service.engine"),
        ("target_service", "from coordinator import turn"),
        ("target_service", "from tests.tiny_models import tiny_llama"),
    ],
)
def test_an_unlawful_import_is_seen_wherever_it_stands(package: str, source: str) -> None:
    assert offences(package, source)


WITHOUT = """
import importlib, sys
for name in {blocked!r}:
    sys.modules[name] = None
for name in {modules!r}:
    importlib.import_module(name)
"""
HEAVY = ["torch", "transformers", "safetensors", "gguf"]


@pytest.mark.parametrize(
    ("package", "blocked"),
    [
        ("coordinator", HEAVY),
        ("specdec.edge", [*HEAVY, "matplotlib"]),
        ("specdec.core", [*HEAVY, "grpc", "google", "opentelemetry", "prometheus_client", "redis"]),
    ],
)
def test_every_module_imports_where_what_it_must_not_need_is_missing(package: str, blocked: list[str]) -> None:
    modules = [module_name(path) for path in sources(package)]
    script = WITHOUT.format(blocked=blocked, modules=modules)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_file_is_longer_than_can_be_read_in_one_sitting() -> None:
    folders = ("specdec", "coordinator", "draft_service", "target_service", "benchmarks")
    lengths = {
        str(path.relative_to(ROOT)): path.read_text().count("\n")
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


# file: what of the wall clock it may read. Spans carry times of day, and a chat template may ask for the date.
WALL_CLOCK = {
    "coordinator/chat_template.py": {"datetime.now"},
    "coordinator/tokenizer.py": {"datetime.now"},
    "draft_service/service.py": {"time.time_ns"},
    "target_service/service.py": {"time.time_ns"},
}


def test_no_deadline_depends_on_the_wall_clock() -> None:
    """It jumps: what is timed is timed by clocks that do not."""
    found = {}
    for package in ("specdec", "coordinator", "draft_service", "target_service"):
        for path in sorted((ROOT / package).rglob("*.py")):
            reads = {
                ast.unparse(node)
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Attribute)
                and ast.unparse(node) in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow")
            }
            if reads:
                found[str(path.relative_to(ROOT))] = reads
    assert found == WALL_CLOCK
