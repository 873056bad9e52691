"""Hugging Face's `Trainer`, with its own checkpoints.

    python ../digits/pack.py --train data --test test.tfrecord
    torchrun --nproc-per-node=2 hf_trainer.py --data data --test test.tfrecord --checkpoint checkpoint

Start it again with any number of ranks that divides the global batch: it goes on in the middle of the epoch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import digits
import torch
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint

import shardfeed as sf


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def forward(self, image: torch.Tensor, label: torch.Tensor, valid: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(image)
        return {"loss": (cross_entropy(logits, label, reduction="none") * valid).mean(), "logits": logits}


class LoaderState(TrainerCallback, ExportableState):
    """Keeps the loader's state in the trainer's (trainer_state.json)."""

    def __init__(self) -> None:
        self.loader: sf.Loader | None = None
        self.saved: dict[str, Any] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **more: Any) -> None:
        self.loader = train_dataloader
        if self.saved is not None:
            self.loader.load_state_dict(self.saved)

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"saved": self.loader and self.loader.state_dict()}}


class DigitsTrainer(Trainer):
    def __init__(self, data: str, seen: Path | None, **options: Any) -> None:
        super().__init__(**options, callbacks=[LoaderState()])
        self.data, self.seen = data, digits.Seen(seen, self.args.process_index)

    def get_train_dataloader(self) -> Any:
        return sf.Loader(
            f"{self.data}/train-*.tfrecord", digits.FEATURES, batch_size=digits.GLOBAL_BATCH // self.args.world_size,
            lanes=digits.LANES, tail="pad", shuffle_window=128, output="torch", job="digits",
        )  # fmt: skip

    def training_step(self, model: torch.nn.Module, inputs: Any, *more: Any) -> torch.Tensor:
        self.seen.add(self.state.global_step, inputs["index"][inputs.valid])
        needed = {"image": inputs["image"], "label": inputs["label"], "valid": inputs.valid}
        return super().training_step(model, needed, *more)


def main() -> None:
    args = digits.parser(__doc__).parse_args()
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        str(args.checkpoint), num_train_epochs=args.epochs, learning_rate=3e-3, lr_scheduler_type="constant",
        save_steps=digits.SAVE_EVERY, save_total_limit=2, seed=1, use_cpu=True, report_to="none", disable_tqdm=True,
        logging_strategy="no",
        # The loader stands where the checkpoint was made; nothing is to be read again in order to be skipped.
        ignore_data_skip=True, restore_callback_states_from_checkpoint=True,
    )  # fmt: skip
    trainer = DigitsTrainer(args.data, args.seen, model=Classifier(), args=arguments)
    last = get_last_checkpoint(args.checkpoint) if args.checkpoint.exists() else None
    trainer.train(resume_from_checkpoint=last)

    if trainer.is_world_process_zero():
        test = sf.Loader(
            args.test, digits.FEATURES, batch_size=50, shuffle=False, tail="pad", output="torch", rank=0, world_size=1,
            job="digits-test",
        )  # fmt: skip
        right = total = 0
        with torch.no_grad():
            for batch in test:
                answer = trainer.model(batch["image"], batch["label"], batch.valid)["logits"].argmax(1)
                right += int((batch.valid & (answer == batch["label"])).sum())
                total += int(batch.valid.sum())
        print(f"accuracy {right / total:.3f} of {total} images")


if __name__ == "__main__":
    main()
