"""The pictures of docs/SAMPLES.md show what loaders deliver."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"

pytestmark = pytest.mark.embedded_only


def test_the_pictures_of_samples_are_those_that_their_script_draws(tmp_path: Path) -> None:
    drawn = runpy.run_path(str(PICTURES / "samples.py"))
    drawn["draw"](tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(drawn["PICTURES"])
    for path in tmp_path.iterdir():
        told = f"{path.name} changed; run: python docs/pictures/samples.py"
        assert path.read_text() == (PICTURES / path.name).read_text(), told
