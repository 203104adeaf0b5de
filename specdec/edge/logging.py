"""One-line logs on stderr."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from specdec.core.errors import ConfigError

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def configure_logging(service: str, env: Mapping[str, str] = os.environ) -> None:
    """Level by LOG_LEVEL, INFO unless set. Raises ConfigError."""
    level = env.get("LOG_LEVEL", "INFO").upper()
    if level not in _LEVELS:
        raise ConfigError("LOG_LEVEL", level, f"must be one of {', '.join(_LEVELS)}")
    layout = f"%(asctime)s %(levelname)s {service} %(name)s: %(message)s"
    logging.basicConfig(level=level, format=layout, force=True)
