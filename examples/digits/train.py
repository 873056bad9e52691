"""One rank of a data-parallel training: softmax regression on handwritten digits, in numpy.

    python pack.py --train data --test test.tfrecord
    RANK=0 WORLD_SIZE=2 python train.py --data data --checkpoint last.npz &
    RANK=1 WORLD_SIZE=2 python train.py --data data --checkpoint last.npz

Start it again with any WORLD_SIZE that divides the global batch: it resumes from the checkpoint,
with the same global batches as without the interruption. On SIGTERM all ranks finish the same step,
save and exit with 143. If a rank dies, the others report it and exit with 1.

With a coordinator, from --coordinator or SHARDFEED_COORDINATOR, the worker of this host reads and
batches (SHARDFEED_WORKER, if its socket is not at the default path). The batches are the same.

Worth copying: the loader in `open_loader`, and the use of its state in `train`, (1) to (4). `Ranks`
replaces torch.distributed or jax.distributed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import shardfeed as sf

Array = npt.NDArray[np.float64]

LEARNING_RATE = 0.5
TIMEOUT_S = 60.0
JOB = "digits"
WEIGHTS_SHAPE = (64 + 1, 10)  # pixels and a bias, digits
FEATURES = {
    "image": sf.FixedLenFeature([64], "float32"),
    "label": sf.FixedLenFeature([], "int64"),
}


def open_loader(
    data: Path, seed: int, global_batch: int, lanes: int, rank: int, world_size: int, **options: Any
) -> sf.Loader:
    """Returns the loader of one rank. Without a coordinator it reads in this process."""
    return sf.Loader(
        f"{data}/train-*.tfrecord",
        features=FEATURES,
        batch_size=global_batch // world_size,
        # By default the loader takes these two from torchrun, Slurm or MPI.
        rank=rank,
        world_size=world_size,
        # The global batch is the same for every world size that divides it, if the number of lanes
        # does not depend on the world size.
        lanes=lanes,
        # Every record once: the last step is padded with rows that are not `valid`.
        tail="pad",
        shuffle_window=64,
        seed=seed,
        # Name of this order in the cluster, for all runs; `shardfeed epoch list --job digits`.
        job=JOB,
        **options,
    )


def scores(weights: Array, images: npt.NDArray[Any]) -> Array:
    """Returns the scores of each digit for each image, `[rows, 10]`."""
    return np.asarray(with_bias(images) @ weights)


def with_bias(images: npt.NDArray[Any]) -> Array:
    # float64, so that the world size affects only the last digits.
    return np.hstack([images.astype(np.float64), np.ones((len(images), 1))])


def gradient_sums(weights: Array, batch: sf.Batch) -> Array:
    """Returns sums over the valid rows: the gradient, flat, then the loss, then the number of
    rows."""
    labels, valid, rows = batch["label"], batch.valid, np.arange(batch.rows)
    logits = scores(weights, batch["image"])
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    loss = -logits[rows, labels]
    error = np.exp(logits)
    error[rows, labels] -= 1
    error[~valid] = 0  # padding must not contribute
    gradient = with_bias(batch["image"]).T @ error
    return np.concatenate([gradient.ravel(), [loss[valid].sum(), valid.sum()]])


def updated(weights: Array, sums: Array, global_batch: int) -> Array:
    """Returns the weights after a step of gradient descent; `sums` are those of all ranks."""
    # Not the mean of the valid rows: a padded last step of 9 rows would weigh as much as one of 48.
    gradient = sums[: weights.size].reshape(weights.shape) / global_batch
    return weights - LEARNING_RATE * gradient


class RankLostError(Exception):
    """Another rank was lost."""


class Ranks:
    """All ranks of this run: a star of unix sockets around rank 0."""

    def __init__(self, path: Path, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self._links: dict[int, socket.socket] = {}
        if world_size == 1:
            return
        if rank == 0:
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.settimeout(TIMEOUT_S)
                listener.bind(str(path))
                listener.listen(world_size)
                while len(self._links) < world_size - 1:
                    try:
                        link, _ = listener.accept()
                        link.settimeout(TIMEOUT_S)
                        self._links[int(_receive(link))] = link
                    except (TimeoutError, ConnectionError, EOFError):
                        came = [0, *sorted(self._links)]
                        raise RankLostError(f"only ranks {came} of {world_size} came") from None
            path.unlink()
        else:
            self._links[0] = _connect(path)
            _send(self._links[0], str(rank).encode())

    def gather(self, mine: bytes) -> list[bytes]:
        """Returns each rank's bytes, in rank order. All ranks must call it; it is also a
        barrier."""
        other = 0
        try:
            if self.rank != 0:
                _send(self._links[0], mine)
                return [_receive(self._links[0]) for _ in range(self.world_size)]
            everyone = [mine]
            for other in range(1, self.world_size):
                everyone.append(_receive(self._links[other]))
            for other in range(1, self.world_size):
                for each in everyone:
                    _send(self._links[other], each)
            return everyone
        except TimeoutError:
            raise RankLostError(f"rank {other} said nothing for {TIMEOUT_S:.0f} s") from None
        except (ConnectionError, EOFError):
            raise RankLostError(f"lost rank {other}") from None

    def sum(self, mine: Array) -> Array:
        """Returns the sum over ranks, bit-identical on all of them."""
        everyone = [np.frombuffer(each) for each in self.gather(mine.tobytes())]
        return np.asarray(np.sum(everyone, axis=0))

    def must_agree(self, what: str, mine: str) -> None:
        """Raises unless every rank passed the same value."""
        everyone = self.gather(mine.encode())
        if len(set(everyone)) > 1:
            raise RuntimeError(f"ranks differ in {what}: {everyone}")


def _connect(path: Path) -> socket.socket:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(TIMEOUT_S)
        try:
            link.connect(str(path))
            return link
        except (FileNotFoundError, ConnectionRefusedError):  # rank 0 is not up yet
            link.close()
            if time.monotonic() > deadline:
                raise RankLostError(f"rank 0 did not come within {TIMEOUT_S:.0f} s") from None
            time.sleep(0.01)


def _send(link: socket.socket, data: bytes) -> None:
    link.sendall(struct.pack("<Q", len(data)) + data)


def _receive(link: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = link.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    return exactly(*struct.unpack("<Q", exactly(8)))


def save(path: Path, weights: Array, state: str) -> None:
    """Saves atomically."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        np.savez(file, weights=weights, state=np.array(state))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load(path: Path) -> tuple[Array, str]:
    """Returns the weights and the loader's state."""
    with np.load(path) as saved:
        return np.asarray(saved["weights"]), str(saved["state"])


def train(args: argparse.Namespace) -> int:
    """Trains until `args.epochs` are done or SIGTERM; returns the exit status."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if args.global_batch % world_size:
        sys.exit(f"WORLD_SIZE={world_size} does not divide --global-batch={args.global_batch}")
    loader = open_loader(
        args.data,
        args.seed,
        args.global_batch,
        args.lanes,
        rank,
        world_size,
        coordinator=args.coordinator,
    )
    weights = np.zeros(WEIGHTS_SHAPE)
    # (1) Every rank resumes from the same state, at any world size.
    if args.checkpoint.exists():
        weights, state = load(args.checkpoint)
        loader.load_state_dict(state)
    ranks = Ranks(args.socket, rank, world_size)
    # (2) Equal digests: all ranks have the same files, options and step.
    ranks.must_agree("the plan", loader.plan_digest)

    stop = False

    def on_sigterm(signal_number: int, frame: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, on_sigterm)
    while loader.epoch < args.epochs:
        for batch in loader:
            time.sleep(args.step_seconds)  # a larger model's time
            # The stop request travels with the gradients, so all ranks stop after the same step.
            sums = ranks.sum(np.append(gradient_sums(weights, batch), float(stop)))
            sums, stops = sums[:-1], sums[-1] > 0
            weights = updated(weights, sums, args.global_batch)
            if (batch.step + 1) % args.log_every == 0 or stops:
                where = f"rank {rank} epoch {batch.epoch} step {batch.step} of {len(loader)}"
                print(f"{where} loss {sums[-2] / sums[-1]:.3f}", flush=True)
            if stops or loader.step % args.save_every == 0:
                # (3) Here every rank has done its part of the step: the sum above waited for all.
                # State and weights belong to the same step and are the same on every rank.
                state = json.dumps(loader.state_dict(), sort_keys=True)
                ranks.must_agree("the state", state)
                if rank == 0:
                    # (4) One file, so that weights and state always belong to the same step.
                    save(args.checkpoint, weights, state)
            if stops:
                return 128 + signal.SIGTERM
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="of a cluster; None: no cluster")
    parser.add_argument("--socket", type=Path, default=Path("ranks.sock"), metavar="FILE")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--global-batch", type=int, default=48, help="samples of all ranks")
    parser.add_argument("--lanes", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=8, help="steps")
    parser.add_argument("--log-every", type=int, default=8, help="steps")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="pretend to be slower")
    args = parser.parse_args()
    try:
        return train(args)
    except RankLostError as error:
        print(f"rank {os.environ.get('RANK', '0')}: {error}; ending", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
