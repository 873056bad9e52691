"""Training with JAX, by examples/trainers/jax_global.py.

Two processes are killed inside an epoch and resumed from Orbax's checkpoint with one process, and
vice versa.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from trainings import ENDLESS, STEPS, Images, Training, assert_trained, epochs_after, free_address


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return Images(tmp_path_factory.mktemp("digits"))


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_it_goes_on_inside_of_an_epoch(images: Images, tmp_path: Path, before: int, after: int) -> None:
    def start(part: str, processes: int, epochs: int) -> Training:
        arguments = ["jax_global.py", *images.arguments(tmp_path / "checkpoint", epochs), f"--processes={processes}"]
        arguments.append(f"--address={free_address()}")
        return Training(tmp_path / part, [([*arguments, f"--process={rank}"], {}) for rank in range(processes)])

    with start("first", before, ENDLESS) as first:
        killed_at = first.hold_inside_an_epoch(after=2 * STEPS)
        first.kill()
    with start("second", after, epochs_after(killed_at)) as second:
        accuracy = second.accuracy()
    assert_trained(images, [(first, before), (second, after)], killed_at, accuracy)
