"""What ends the story."""

from __future__ import annotations


class NotHeld(Exception):
    """A sentence: what the stack should have done and did not."""
