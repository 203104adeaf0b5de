import logging
import subprocess
import sys

import pytest

from specdec.core.errors import ConfigError
from specdec.edge.logging import configure_logging

PROGRAM = """
import logging
from specdec.edge.logging import configure_logging
configure_logging("target", {"LOG_LEVEL": "warning"})
logging.getLogger("a").info("hidden")
logging.getLogger("a").warning("shown %d", 1)
"""


def test_logs_are_single_lines_on_stderr_at_the_level_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.endswith("WARNING target a: shown 1")


def test_an_unknown_level_is_a_configuration_error() -> None:
    before = logging.getLogger().level
    with pytest.raises(ConfigError, match="LOG_LEVEL"):
        configure_logging("x", {"LOG_LEVEL": "loud"})
    assert logging.getLogger().level == before
