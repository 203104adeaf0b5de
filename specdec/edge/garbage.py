"""The cyclic garbage collector of a process that serves: seldom, and never over what will live as long as it does."""

from __future__ import annotations

import gc

# Objects made before the youngest are looked at; younger collections before an older one. What a request leaves behind
# is freed by its reference counts: cycles are rare.
THRESHOLDS = (5_000, 20, 100)


def settle_garbage() -> None:
    """Call it once everything is loaded. A full collection over the objects of five hundred sessions and of all
    imported modules stopped a coordinator's loop for a tenth of a second, several times a minute
    (`benchmarks.capacity`)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
