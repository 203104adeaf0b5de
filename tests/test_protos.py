"""The committed stubs are those of the committed protos."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_regenerating_the_stubs_changes_no_byte(tmp_path: Path) -> None:
    protos = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("protos/*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *protos]
    subprocess.run(command, cwd=ROOT, check=True)
    fresh = {path.name: path.read_bytes() for path in tmp_path.glob("protos/*")}
    committed = {path.name: path.read_bytes() for path in ROOT.glob("protos/*_pb2*")}
    assert sorted(fresh) == sorted(committed)
    assert [name for name in fresh if fresh[name] != committed[name]] == []
