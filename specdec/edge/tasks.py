"""Task groups that leave no garbage behind."""

from __future__ import annotations

import asyncio
import traceback
from types import TracebackType


class TaskGroup(asyncio.TaskGroup):
    """As asyncio's, which a cancellation leaves in two circles: the frame of its end keeps the error that it raises
    (before Python 3.13), and it keeps the task that ran it, which keeps that error. From them hang all locals of
    whoever was cancelled, a call and its socket among them, until garbage is collected."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        except BaseException as raised:
            traceback.clear_frames(raised.__traceback__)
            raise
        finally:
            self._parent_task = None
            del error, trace
