"""Training with PyTorch, Lightning, Accelerate and Hugging Face's Trainer, by examples/trainers.

Each is killed inside an epoch, and resumed from the framework's own checkpoint with another number
of processes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from trainer import served
from trainings import DEADLINE_S, ENDLESS, STEPS, Images, Training, assert_trained, epochs_after, free_address

from shardfeed.testing import Cluster, until


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return Images(tmp_path_factory.mktemp("digits"))


def launch(name: str, ranks: int) -> list[str]:
    if name == "lightning_fit":
        # It starts the other processes itself.
        return ["lightning_fit.py", f"--devices={ranks}"]
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", f"{name}.py"]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("torch_ddp", 1, 2), ("lightning_fit", 2, 1), ("accelerate_loop", 2, 3), ("hf_trainer", 2, 1)],
)
def test_it_goes_on_inside_of_an_epoch(images: Images, tmp_path: Path, name: str, before: int, after: int) -> None:
    def start(part: str, ranks: int, epochs: int) -> Training:
        command = [*launch(name, ranks), *images.arguments(tmp_path / "checkpoint", epochs)]
        return Training(tmp_path / part, [(command, {})])

    with start("first", before, ENDLESS) as first:
        killed_at = first.hold_inside_an_epoch(after=2 * STEPS)
        first.kill()
    with start("second", after, epochs_after(killed_at)) as second:
        accuracy = second.accuracy()
    assert_trained(images, [(first, before), (second, after)], killed_at, accuracy)


@pytest.mark.parametrize("after", [1, 3])
def test_ddp_in_a_cluster_whose_worker_is_killed(images: Images, tmp_path: Path, after: int) -> None:
    """Two torchruns represent two hosts, each with a worker. One worker is killed inside an epoch
    and the training continues; later all ranks are killed, and the training is resumed with
    others."""
    with Cluster(tmp_path / "cluster", workers=2, config="session-ttl-ms = 3000\nheartbeat-ms = 500\n") as running:

        def start(run: str, hosts: list[int], ranks_each: int, epochs: int) -> Training:
            torchrun = ["-m", "torch.distributed.run", f"--nnodes={len(hosts)}", f"--nproc-per-node={ranks_each}"]
            torchrun += ["--rdzv-backend=c10d", f"--rdzv-endpoint={free_address()}", f"--rdzv-id={run}"]
            torchrun += ["--local-addr=127.0.0.1", "torch_ddp.py", *images.arguments(tmp_path / "checkpoint", epochs)]
            # torchrun identifies the run.
            variables = [{**running.variables(run, host), "SHARDFEED_RUN_ID": ""} for host in hosts]
            return Training(tmp_path / run, [(torchrun, each) for each in variables])

        def workers() -> set[str]:
            return {rank["worker"] for rank in served(running, "digits").values()}

        with start("first", hosts=[0, 1], ranks_each=1, epochs=ENDLESS) as first:
            first.hold_inside_an_epoch()
            until(lambda: workers() == {"worker-0", "worker-1"}, "each rank has its host's worker")
            running.workers[0].kill()
            first.go_on()
            until(lambda: "worker-0" not in workers(), "its rank reads in its own process", DEADLINE_S)
            killed_at = first.hold_inside_an_epoch(after=first.steps() + STEPS)
            first.kill()
        with start("second", hosts=[1], ranks_each=after, epochs=epochs_after(killed_at)) as second:
            accuracy = second.accuracy()
    assert_trained(images, [(first, 2), (second, after)], killed_at, accuracy)
