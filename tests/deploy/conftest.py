from __future__ import annotations

import pytest

from tests.deploy.__main__ import gathered
from tests.deploy.checks import Facts
from tests.metrics import declared


@pytest.fixture(scope="session")
def facts() -> Facts:
    """The repository's own, beside every instrument that there is."""
    return gathered(declared(labelled=False))
