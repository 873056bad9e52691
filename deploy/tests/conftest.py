"""Fixtures shared by several test files."""

from __future__ import annotations

from collections.abc import Iterator

import containers
import pytest


@pytest.fixture(scope="session")
def images() -> Iterator[None]:
    containers.build_images()
    yield
    containers.remove_images()
