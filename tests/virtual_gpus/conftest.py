"""All of these tests need virtual GPUs, and are skipped where these cannot be built."""

import pytest


@pytest.fixture(autouse=True)
def needs_virtual_gpus(virtual_gpus):
    """See tests/conftest.py."""
