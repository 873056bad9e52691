"""A loader in Hugging Face's `Trainer`, with its own checkpoints. Requires transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from shardfeed.batch import Batch
from shardfeed.errors import ConfigError
from shardfeed.loader import Loader, State


class LoaderState(TrainerCallback, ExportableState):
    """Saves the loader's state in the trainer's state (trainer_state.json), as of the last batch
    that is in the weights.

    `Trainer` fetches all batches of an update in advance, and a batch is in the weights after the
    update: a checkpoint made after an exception inside an update has the state before it.
    `LoaderTrainer` adds this callback, and calls `trained_on()`.
    """

    def __init__(self) -> None:
        self.loader: Loader | None = None
        #: State from a checkpoint, set by `Trainer`.
        self.saved: State | None = None
        self._state: State | None = None
        #: Epoch of the last batch, and the state after it until the next update.
        self._epoch: int | None = None
        self._pending: State | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: object = None,
        **more: object,
    ) -> None:
        """Moves the loader to the position of the checkpoint."""
        if not isinstance(train_dataloader, Loader):
            raise ConfigError(
                f"LoaderState is for a shardfeed.Loader from get_train_dataloader(), not {type(train_dataloader).__name__}"
            )
        self.loader = train_dataloader
        if self.saved is not None:
            self.loader.load_state_dict(self.saved)
            self.saved = None
        self._state, self._epoch, self._pending = self.loader.state_dict(), None, None

    def trained_on(self, batch: Batch) -> None:
        """Notes that the gradients include this batch, as the next update will."""
        if self.loader is not None:
            self._epoch, self._pending = batch.epoch, self.loader.state_after(batch)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Commits the state: the weights now include the gradients."""
        if self._pending is None:
            raise ConfigError(
                "LoaderState does not know which batch this update is with: training_step() of LoaderTrainer needs the "
                "loader's batches; change them in model_inputs="
            )
        self._state, self._pending = self._pending, None
        self._note_end()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Notes the end of an epoch whose number of steps was unknown."""
        if self._pending is None:
            self._note_end()

    def _note_end(self) -> None:
        """Updates the state if the last batch ended its epoch, which only the loader knows. All
        fetched batches were trained on."""
        if self.loader is not None and self._epoch not in (None, self.loader.epoch) and self.loader.step == 0:
            self._state = self.loader.state_dict()

    def state(self) -> dict[str, dict[str, object]]:
        """Returns the state in the format of `Trainer`'s checkpoints."""
        return {"args": {}, "attributes": {"saved": self.saved if self._state is None else self._state}}


class LoaderTrainer(Trainer):
    """`transformers.Trainer` over a `Loader`.

        trainer = sf.huggingface.LoaderTrainer(
            model=model, args=arguments, train_loader=lambda: sf.Loader(..., output="torch"),
            eval_loader=lambda: sf.Loader(..., output="torch", shuffle=False, tail="pad", restart=True),
            model_inputs=lambda batch: {"input_ids": batch["tokens"], "labels": batch["tokens"]},
        )

    - `train_loader`: returns this rank's loader, with output="torch"; called once, when training
      begins, as the rank may be unknown before.
    - `eval_loader`: returns the loader for `evaluate()`, with output="torch" and restart=True;
      called once, when an evaluation begins. None: `eval_dataset=`, as for `Trainer`.
    - `model_inputs`: returns the model's arguments for a batch; None: its columns.
    - `args`: requires `ignore_data_skip=True` and `restore_callback_states_from_checkpoint=True`,
      as the loader resumes at the position of the checkpoint.
    - The others as for `Trainer`.

    Raises `ConfigError` for other `args`, and for an `eval_loader` without restart=True.
    """

    def __init__(
        self,
        *arguments: object,
        train_loader: Callable[[], Loader],
        eval_loader: Callable[[], Loader] | None = None,
        model_inputs: Callable[[Batch], Mapping[str, object]] | None = None,
        **options: object,
    ) -> None:
        if eval_loader is not None:
            if options.get("eval_dataset") is not None:
                raise ConfigError("LoaderTrainer takes eval_loader= or eval_dataset=, not both")
            # `Trainer` requires an evaluation dataset.
            options["eval_dataset"] = eval_loader
        super().__init__(*arguments, **options)
        for name in ("ignore_data_skip", "restore_callback_states_from_checkpoint"):
            if not getattr(self.args, name):
                raise ConfigError(
                    f"LoaderTrainer needs TrainingArguments({name}=True): a loader continues where the checkpoint was made"
                )
        self._make_loader, self._make_eval_loader, self._model_inputs = train_loader, eval_loader, model_inputs
        self._loader: Loader | None = None
        self._eval_loader: Loader | None = None
        self.add_callback(LoaderState())

    def get_train_dataloader(self) -> Loader:
        """Returns the loader unprepared: `Accelerator.prepare` would divide its batches once
        more."""
        if self._loader is None:
            self._loader = self._make_loader()
        return self._loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Returns the loader of `eval_loader`, unprepared; for another dataset, `Trainer`'s
        dataloader."""
        if self._make_eval_loader is None or eval_dataset not in (None, self._make_eval_loader):
            return super().get_eval_dataloader(eval_dataset)
        if self._eval_loader is None:
            made = self._make_eval_loader()
            made._check_restart("eval_loader of LoaderTrainer")
            self._eval_loader = made
        return self._eval_loader

    def num_examples(self, dataloader: Any) -> int:
        """Returns the samples of an epoch, over all ranks."""
        number: int = dataloader.samples if isinstance(dataloader, Loader) else super().num_examples(dataloader)
        return number

    def training_step(self, model: torch.nn.Module, inputs: object, *more: object) -> torch.Tensor:
        """Runs a training step on the model's arguments, as a dict."""
        loss: torch.Tensor = super().training_step(model, self._arguments(inputs), *more)
        if isinstance(inputs, Batch):
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, LoaderState):
                    callback.trained_on(inputs)
        return loss

    def prediction_step(self, model: torch.nn.Module, inputs: object, *more: object, **options: object) -> Any:
        """Runs `Trainer`'s prediction step on the model's arguments."""
        return super().prediction_step(model, self._arguments(inputs), *more, **options)

    def _arguments(self, inputs: object) -> object:
        if not isinstance(inputs, Batch):
            return inputs
        return dict(inputs if self._model_inputs is None else self._model_inputs(inputs))

    def _run_epoch(self, **of_epoch: Any) -> None:
        """Corrects the number of steps for the rest of an epoch.

        With the number of a full epoch, `Trainer` would defer a last update of fewer than
        `gradient_accumulation_steps` batches to the next epoch.
        """
        loader, epoch = self._loader, of_epoch.get("epoch")
        if loader is not None and loader.epoch == epoch and loader.step > 0 and loader._native.steps() is not None:
            left = len(loader) - loader.step
            of_epoch["steps_in_epoch"] = left
            of_epoch["num_update_steps_per_epoch"] = ceil(left / self.args.gradient_accumulation_steps)
        super()._run_epoch(**of_epoch)
