"""Lightning: a loader, or a StatefulDataLoader over one, with Lightning's own checkpoints."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import lightning as L
import mixed
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import shardfeed as sf
from shardfeed.testing import Cluster


class Model(L.LightningModule):
    """Records the samples that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch: sf.Batch, index: int) -> torch.Tensor:
        assert isinstance(batch, sf.Batch) and isinstance(batch["name"], sf.BytesColumn)
        self.seen.append(batch["id"].tolist())
        return self.layer(batch["image"].flatten(1)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def trainer(folder: Path, steps: int, callbacks: list[Any] | None = None, **options: Any) -> L.Trainer:
    return L.Trainer(
        max_steps=steps, default_root_dir=folder, accelerator="cpu", logger=False, callbacks=callbacks or [],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=bool(callbacks), **options,
    )  # fmt: skip


def plain(files: str) -> Any:
    return mixed.loader(files, output="torch")


def stateful(files: str) -> Any:
    return StatefulDataLoader(sf.torch.Dataset(plain(files)), batch_size=None)


@pytest.fixture
def files(tmp_path: Path) -> str:
    return mixed.write(tmp_path / "data")


@pytest.mark.parametrize("make", [plain, stateful])
@pytest.mark.parametrize("stop", [2, 6, 9])
def test_a_run_goes_on_at_the_exact_batch(files: str, tmp_path: Path, make: Any, stop: int) -> None:
    """After two steps, at the end of an epoch, and in the middle of the second one."""
    each = plain(files)
    expected = [batch["id"].tolist() for _ in range(3) for batch in each]
    whole = Model()
    trainer(tmp_path, 18).fit(whole, make(files))
    assert whole.seen == expected
    first = Model()
    checkpoint = L.pytorch.callbacks.ModelCheckpoint(tmp_path / "kept", every_n_train_steps=stop, save_top_k=-1)
    trainer(tmp_path, stop, [checkpoint]).fit(first, make(files))
    assert first.seen == expected[:stop]
    second = Model()
    with warnings.catch_warnings():
        # Lightning would warn if it found no state in the loader.
        warnings.filterwarnings("error", message=".*not resumable.*")
        trainer(tmp_path, 18).fit(second, make(files), ckpt_path=checkpoint.best_model_path)
    assert second.seen == expected[stop:]


def test_an_unknown_length_is_fetched_ahead_of(
    files: str, tmp_path: Path, small_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dynamic(run: str) -> sf.Loader:
        for name, value in small_cluster.variables(run).items():
            monkeypatch.setenv(name, value)
        return mixed.loader(files, output="torch", mode="dynamic", tail="uneven", interleave=1, job=f"ahead-{tmp_path}")

    first = Model()
    checkpoint = L.pytorch.callbacks.ModelCheckpoint(tmp_path / "kept", every_n_train_steps=3, save_top_k=-1)
    loader = dynamic("first")
    # In the unfavorable order: Lightning moves callbacks that save to the end.
    trainer(tmp_path, 3, [checkpoint, sf.lightning.LoaderState()]).fit(first, loader)
    assert len(first.seen) == 3 and loader.step == 4
    loader.close()
    second = Model()
    trainer(tmp_path, -1, max_epochs=1).fit(second, dynamic("second"), ckpt_path=checkpoint.best_model_path)
    assert sorted(number for ids in first.seen + second.seen for number in ids) == list(range(mixed.ROWS))


def test_at_the_end_of_an_epoch_the_next_one_is_kept(
    files: str, tmp_path: Path, small_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the loader knows that the last batch was the last. Known lengths are saved as without
    it."""
    for name, value in small_cluster.variables("end").items():
        monkeypatch.setenv(name, value)
    unknown = {"mode": "dynamic", "tail": "uneven", "interleave": 1, "job": f"end-{tmp_path}"}
    for kept, options in ((tmp_path / "unknown", unknown), (tmp_path / "known", {"job": f"known-{tmp_path}"})):
        loader = mixed.loader(files, output="torch", **options)
        checkpoint = L.pytorch.callbacks.ModelCheckpoint(kept, every_n_epochs=1, save_on_train_epoch_end=True)
        trainer(tmp_path, -1, [sf.lightning.LoaderState(), checkpoint], max_epochs=1).fit(Model(), loader)
        saved = torch.load(checkpoint.best_model_path, weights_only=False)
        assert saved["loops"]["fit_loop"]["state_dict"]["combined_loader"] == [loader.state_dict()]
        assert (loader.epoch, loader.step) == (1, 0)
        loader.close()


@pytest.mark.parametrize("stop", [0, 1, 5, 6])
def test_an_exception_in_a_step_loses_no_batch(files: str, tmp_path: Path, stop: int) -> None:
    """Also in the first step of a training, and in that of one resumed from a checkpoint."""

    class Stops(Model):
        def training_step(self, batch: sf.Batch, index: int) -> torch.Tensor:
            if len(self.seen) == stop:
                raise InterruptedError
            return super().training_step(batch, index)

    each = plain(files)
    expected = [batch["id"].tolist() for _ in range(3) for batch in each]
    seen: list[list[int]] = []
    checkpoint: Any = None
    for number in range(2):
        kept = L.pytorch.callbacks.OnExceptionCheckpoint(str(tmp_path), filename=f"kept-{number}")
        model = Stops()
        with pytest.raises(InterruptedError):
            trainer(tmp_path, 18, [sf.lightning.LoaderState(), kept]).fit(model, plain(files), ckpt_path=checkpoint)
        checkpoint, seen = kept.ckpt_path, seen + model.seen
    last = Model()
    trainer(tmp_path, 18).fit(last, plain(files), ckpt_path=checkpoint)
    assert seen + last.seen == expected[:18]


def test_what_it_cannot_speak_for_is_refused(files: str, tmp_path: Path) -> None:
    class AsDict(Model):
        def on_before_batch_transfer(self, batch: Any, index: int) -> Any:
            return dict(batch)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.layer(batch["image"].flatten(1)).mean()

    for model, given, said in (
        (Model(), stateful(files), "one shardfeed.Loader as train_dataloader, not StatefulDataLoader"),
        (AsDict(), plain(files), r"training_step\(\) got a dict"),
    ):
        with pytest.raises(sf.ConfigError, match=said):
            trainer(tmp_path, 3, [sf.lightning.LoaderState()]).fit(model, given)
