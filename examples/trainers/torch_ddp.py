"""DistributedDataParallel, started by torchrun, with checkpoints of torch.distributed.checkpoint.

    python ../digits/pack.py --train data --test test.tfrecord
    torchrun --nproc-per-node=2 torch_ddp.py --data data --test test.tfrecord --checkpoint checkpoint

Start it again with any number of ranks that divides the global batch: it resumes inside the epoch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import digits
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import shardfeed as sf


class Training:
    """Model, optimizer and number of steps, in the form that torch.distributed.checkpoint
    requires."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.steps = 0

    def step(self, batch: sf.Batch) -> None:
        loss = cross_entropy(self.model(batch["image"]), batch["label"], reduction="none")
        self.optimizer.zero_grad()
        (loss * batch.valid).mean().backward()
        self.optimizer.step()
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        self.steps = state["steps"]


def last_checkpoint(folder: Path) -> Path | None:
    """Returns the last complete checkpoint, one with .metadata, which is written last."""
    whole = [path.parent for path in folder.glob("step-*/.metadata")]
    return max(whole, key=lambda path: int(re.sub(r"\D", "", path.name)), default=None)


@torch.no_grad()
def accuracy(model: torch.nn.Module, file: str) -> tuple[float, int]:
    test = sf.Loader(
        file, digits.FEATURES, batch_size=50, shuffle=False, tail="pad", restart=True, output="torch", rank=0, world_size=1,
        job="digits-test",
    )  # fmt: skip
    right = total = 0
    for batch in test:
        right += int((batch.valid & (model(batch["image"]).argmax(1) == batch["label"])).sum())
        total += int(batch.valid.sum())
    return right / total, total


def main() -> None:
    args = digits.parser(__doc__).parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    loader = sf.Loader(
        f"{args.data}/train-*.tfrecord", digits.FEATURES, batch_size=digits.GLOBAL_BATCH // dist.get_world_size(),
        lanes=digits.LANES, tail="pad", shuffle_window=128, output="torch", job="digits",
    )  # fmt: skip
    training = Training()
    # The loader has a state, like model and optimizer.
    state = {"training": training, "loader": loader}
    last = last_checkpoint(args.checkpoint)
    if last is not None:
        dcp.load(state, checkpoint_id=last)
    seen = digits.Seen(args.seen, dist.get_rank())
    for epoch in loader.epochs(args.epochs):
        for batch in epoch:
            seen.add(training.steps, batch["index"][batch.valid])
            training.step(batch)
            if training.steps % digits.SAVE_EVERY == 0:
                dcp.save(state, checkpoint_id=args.checkpoint / f"step-{training.steps}")
    if dist.get_rank() == 0:
        print("accuracy {:.3f} of {} images".format(*accuracy(training.model.module, args.test)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
