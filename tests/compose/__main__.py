"""The images and docker-compose.yml on a real engine: `make compose-e2e`, or `python -m tests.compose`.

Builds the images, brings the stack up, generates through it from this host, scales drafters 1 -> 3 -> 1 and stops a
verifier under load, reads a trace and the metrics of every container, and takes all down again, with figures.
Exit code 0: all of it held; 1: something did not; 3: no engine can be used here, so nothing was shown."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from specdec.edge.cluster import free_ports
from tests.compose.airgapped import airgapped_engine
from tests.compose.engine import Engine, EngineFailed, NoEngine
from tests.compose.failure import NotHeld
from tests.compose.image_sizes import check_sizes
from tests.compose.stack import Stack
from tests.compose.story import tell
from tests.otlp_receiver import OtlpReceiver

FAILED, NO_ENGINE, INTERRUPTED = 1, 3, 130


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.compose", description=__doc__)
    parser.add_argument(
        "--airgapped",
        metavar="FOLDER",
        type=Path,
        help="as root on a Debian host without an image registry: an engine of its own, whose data stays in FOLDER",
    )
    parser.add_argument("--trace", metavar="FILE", type=Path, help="keep the spans of the one request, as JSON")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: what was started is taken down
        signal.signal(number, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            engine = _engine(stack, arguments.airgapped)
            return _shown_on(engine, arguments.trace)
    except NoEngine as reason:
        print(f"compose-e2e: nothing was shown: {reason}", file=sys.stderr)
        return NO_ENGINE
    except (NotHeld, EngineFailed, TimeoutError, OSError) as error:
        print(f"compose-e2e failed: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _engine(stack: ExitStack, airgapped: Path | None) -> Engine:
    engine = Engine() if airgapped is None else stack.enter_context(airgapped_engine(airgapped))
    engine.check()
    return engine


def _shown_on(engine: Engine, trace: Path | None) -> int:
    (port,) = free_ports(1)
    with OtlpReceiver(engine.gateway) as receiver:
        stack = Stack(engine, port, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": receiver.endpoint})
        stack.down()  # whatever an earlier run left
        begun = time.monotonic()
        stack.build()
        print(f"images built in {time.monotonic() - begun:.0f} s", flush=True)
        check_sizes(engine)
        try:
            asyncio.run(tell(stack, receiver, trace))
        except BaseException:
            print(stack.logs(), file=sys.stderr)
            raise
        finally:
            stack.down()
    print("all of it held; the stack is down", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
