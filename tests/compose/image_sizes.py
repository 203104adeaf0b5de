"""What images weigh, and how much of it is ours: the layers above the base that they share with everybody."""

from __future__ import annotations

from tests.compose.engine import Engine
from tests.compose.failure import NotHeld
from tests.deploy.compose import built, read_compose

OUR_FIRST_STEP = "useradd"  # of every image's last stage
MOST = {"coordinator": 170e6}  # bytes of our own layers


def check_sizes(engine: Engine) -> None:
    """Prints them. Raises NotHeld."""
    for service, image in built(read_compose()).items():
        whole, own = engine.inspect("image", image)["Size"], own_bytes(engine, image)
        print(f"image {image}: {whole / 1e6:.0f} MB, own layers {own / 1e6:.0f} MB", flush=True)
        if own > MOST.get(service, float("inf")):
            raise NotHeld(f"the own layers of {image} are {own / 1e6:.0f} MB, above {MOST[service] / 1e6:.0f} MB")


def own_bytes(engine: Engine, image: str) -> int:
    """Bytes of the layers from our first step on."""
    history = engine.docker("history", "--no-trunc", "--human=false", "--format", "{{.Size}} {{.CreatedBy}}", image)
    total = 0
    for line in history.splitlines():  # the newest first
        size, _, step = line.partition(" ")
        total += int(size)
        if OUR_FIRST_STEP in step:
            return total
    raise NotHeld(f"the layers of {image} do not begin with {OUR_FIRST_STEP}")
