"""Lightning's `Trainer.fit` in one or more processes, with its own checkpoints.

    python ../digits/pack.py --train data --test test.tfrecord
    python lightning_fit.py --devices 2 --data data --test test.tfrecord --checkpoint checkpoint

Start it again with any number of devices that divides the global batch: it resumes inside the
epoch.
"""

from __future__ import annotations

from typing import Any

import digits
import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy

import shardfeed as sf


class Digits(L.LightningDataModule):
    """Creates the loaders in the hooks, which run after the processes started and know their
    ranks."""

    def __init__(self, data: str, test: str) -> None:
        super().__init__()
        self.data, self.test = data, test

    def train_dataloader(self) -> sf.Loader:
        assert self.trainer is not None
        return sf.Loader(
            f"{self.data}/train-*.tfrecord", digits.FEATURES, batch_size=digits.GLOBAL_BATCH // self.trainer.world_size,
            lanes=digits.LANES, tail="pad", shuffle_window=128, output="torch", job="digits",
        )  # fmt: skip

    def test_dataloader(self) -> sf.Loader:
        return sf.Loader(
            self.test, digits.FEATURES, batch_size=50, shuffle=False, tail="pad", restart=True, output="torch", job="digits-test"
        )


class Classifier(L.LightningModule):
    def __init__(self, seen: Any = None) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")
        self.seen_folder = seen

    def on_train_start(self) -> None:
        self.seen = digits.Seen(self.seen_folder, self.global_rank)

    def training_step(self, batch: sf.Batch, index: int) -> torch.Tensor:
        self.seen.add(self.global_step, batch["index"][batch.valid])
        loss = cross_entropy(self.layers(batch["image"]), batch["label"], reduction="none")
        return (loss * batch.valid).mean()

    def test_step(self, batch: sf.Batch, index: int) -> None:
        self.accuracy(self.layers(batch["image"])[batch.valid], batch["label"][batch.valid])
        self.log("accuracy", self.accuracy)
        self.log("images", batch.valid.sum().float(), reduce_fx="sum", sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main() -> None:
    parser = digits.parser(__doc__)
    parser.add_argument("--devices", type=int, default=1, help="processes")
    args = parser.parse_args()
    L.seed_everything(1)
    torch.set_num_threads(1)
    checkpoints = ModelCheckpoint(args.checkpoint, every_n_train_steps=digits.SAVE_EVERY, save_last=True)
    trainer = L.Trainer(
        accelerator="cpu", devices=args.devices, strategy="ddp" if args.devices > 1 else "auto", logger=False,
        max_epochs=args.epochs, callbacks=[checkpoints], enable_progress_bar=False,
    )  # fmt: skip
    data, model = Digits(args.data, args.test), Classifier(args.seen)
    last = args.checkpoint / "last.ckpt"
    trainer.fit(model, data, ckpt_path=last if last.exists() else None)
    (result,) = trainer.test(model, data, verbose=False)
    if trainer.is_global_zero:
        print(f"accuracy {result['accuracy']:.3f} of {result['images']:.0f} images")


if __name__ == "__main__":
    main()
