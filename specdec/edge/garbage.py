"""The cyclic garbage collector of a process that serves: seldom, and never over what will live as long as it does."""

from __future__ import annotations

import gc

# Young objects as often as Python does by itself: in cycles that a cancelled call leaves there are sockets. All of them
# together seldom.
THRESHOLDS = (700, 10, 100)


def settle_garbage() -> None:
    """Call it once everything is loaded. A full collection over the objects of five hundred sessions and of all
    imported modules stopped a coordinator's loop for a tenth of a second, several times a minute
    (`benchmarks.capacity`)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
