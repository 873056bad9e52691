"""Hugging Face's `Trainer`, with its own checkpoints.

    python ../digits/pack.py --train data --test test.tfrecord
    torchrun --nproc-per-node=2 hf_trainer.py --data data --test test.tfrecord --checkpoint checkpoint

Start it again with any number of ranks that divides the global batch: it resumes inside the epoch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import digits
import torch
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import shardfeed as sf


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def forward(self, image: torch.Tensor, label: torch.Tensor, valid: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(image)
        return {"loss": (cross_entropy(logits, label, reduction="none") * valid).mean(), "logits": logits}


class DigitsTrainer(sf.huggingface.LoaderTrainer):
    """Also records the samples of each step."""

    def __init__(self, seen: Path | None, **options: Any) -> None:
        super().__init__(**options)
        self.seen = digits.Seen(seen, self.args.process_index)

    def training_step(self, model: torch.nn.Module, inputs: Any, *more: Any) -> torch.Tensor:
        self.seen.add(self.state.global_step, inputs["index"][inputs.valid])
        return super().training_step(model, inputs, *more)


def model_inputs(batch: sf.Batch) -> dict[str, torch.Tensor]:
    return {"image": batch["image"], "label": batch["label"], "valid": batch.valid}


def accuracy(given: EvalPrediction) -> dict[str, float]:
    label, valid = given.label_ids
    right = given.predictions.argmax(1) == label
    return {"accuracy": float(right[valid].mean()), "images": int(valid.sum())}


def main() -> None:
    args = digits.parser(__doc__).parse_args()
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        str(args.checkpoint), num_train_epochs=args.epochs, learning_rate=3e-3, lr_scheduler_type="constant",
        save_steps=digits.SAVE_EVERY, save_total_limit=2, seed=1, use_cpu=True, report_to="none", disable_tqdm=True,
        logging_strategy="no", label_names=["label", "valid"],
        # The loader resumes at the position of the checkpoint, so no data must be read and skipped.
        ignore_data_skip=True, restore_callback_states_from_checkpoint=True,
    )  # fmt: skip

    def train_loader() -> sf.Loader:
        return sf.Loader(
            f"{args.data}/train-*.tfrecord", digits.FEATURES, batch_size=digits.GLOBAL_BATCH // arguments.world_size,
            lanes=digits.LANES, tail="pad", shuffle_window=128, output="torch", job="digits",
        )  # fmt: skip

    def eval_loader() -> sf.Loader:
        return sf.Loader(
            args.test, digits.FEATURES, batch_size=50, shuffle=False, tail="pad", restart=True, output="torch",
            job="digits-test",
        )  # fmt: skip

    trainer = DigitsTrainer(
        args.seen, model=Classifier(), args=arguments, train_loader=train_loader, eval_loader=eval_loader,
        model_inputs=model_inputs, compute_metrics=accuracy,
    )  # fmt: skip
    last = get_last_checkpoint(args.checkpoint) if args.checkpoint.exists() else None
    trainer.train(resume_from_checkpoint=last)

    result = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"accuracy {result['eval_accuracy']:.3f} of {result['eval_images']} images")


if __name__ == "__main__":
    main()
