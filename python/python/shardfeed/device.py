"""Types of columns on a GPU: views of the device's slot, or a framework's tensors. docs/GPU.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from shardfeed._native import DeviceArray
from shardfeed.errors import ConfigError
from shardfeed.output import Jax, Output, Torch

if TYPE_CHECKING:
    from shardfeed.batch import Batch


class Device(Protocol):
    """A `torch.device`."""

    @property
    def type(self) -> str: ...
    @property
    def index(self) -> int | None: ...


def ordinal(device: str | Device, output: str) -> int | None:
    """Returns the number of the device named by a text or `torch.device`; None: host.

    Raises `ConfigError` for other names.
    """
    text = str(device)
    match = re.fullmatch(r"cuda(?::([0-9]{1,4}))?", text)
    if text == "cpu":
        return None
    if match is None:
        raise ConfigError(f'device={text!r} is neither "cpu" nor "cuda" or "cuda:N" with the number of a GPU')
    if match[1] is not None:
        return int(match[1])
    return _current() if output == "torch" else 0


def _current() -> int:
    """Returns torch's current device, if torch has initialized CUDA; else 0."""
    torch = Torch().framework
    return int(torch.cuda.current_device()) if torch.cuda.is_initialized() else 0


class Arrays(Output):
    """`DeviceArray`s, which other libraries import by DLPack. For output="numpy", as numpy has no
    GPU arrays."""

    def check(self, dtypes: Iterable[tuple[str, str]]) -> None:
        """Accepts all types."""

    def fill(self, batch: Batch) -> None:
        for name, array in _named(batch):
            _put(batch, name, array)


class TorchOnDevice(Torch):
    """`torch.Tensor` in torch's own memory on the GPU, copied from the batch on torch's current
    stream. With `zero_copy`, tensors that view the batch."""

    def __init__(self, number: int, zero_copy: bool) -> None:
        super().__init__()
        self._device = f"cuda:{number}"
        self._zero_copy = zero_copy

    def fill(self, batch: Batch) -> None:
        torch, arrays = self.framework, _named(batch)
        if self._zero_copy:
            for name, array in arrays:
                _put(batch, name, torch.from_dlpack(array))
            return
        tensors = [
            torch.empty(array.shape, dtype=getattr(torch, array.dtype), device=self._device) for _, array in arrays
        ]
        stream = torch.cuda.current_stream(self._device).cuda_stream
        batch._slot.copy_out([tensor.data_ptr() for tensor in tensors], stream)
        for (name, _), tensor in zip(arrays, tensors, strict=True):
            _put(batch, name, tensor)


class JaxOnDevice(Jax):
    """`jax.Array` in JAX's own memory on the GPU."""

    def check(self, dtypes: Iterable[tuple[str, str]]) -> None:
        wide = [name for name, dtype in dtypes if dtype in ("int64", "float64")]
        if wide and not self.framework.config.jax_enable_x64:
            raise ConfigError(
                f"columns {', '.join(map(repr, wide))} have types of 64 bits, which JAX has not here and which are not "
                f'narrowed on a GPU; make them others with source.cast(), or turn them on with '
                f'jax.config.update("jax_enable_x64", True)'
            )

    def fill(self, batch: Batch) -> None:
        jax = self.framework
        taken = [(name, jax.dlpack.from_dlpack(array, copy=True)) for name, array in _named(batch)]
        # JAX does not expose the streams of later work, so the slot is released when its copy is
        # complete.
        jax.block_until_ready([value for _, value in taken])
        for name, value in taken:
            _put(batch, name, value)
        batch._slot.release()


def find(output: str, number: int, zero_copy: bool) -> Output:
    """Returns the output of this name on a GPU. Raises `ConfigError`."""
    if zero_copy and output != "torch":
        raise ConfigError(
            'zero_copy=True is for output="torch": output="numpy" gives views as it is, and JAX does not say when it is '
            "done with them"
        )
    if output == "torch":
        return TorchOnDevice(number, zero_copy)
    if output == "jax":
        return JaxOnDevice()
    if output == "numpy":
        return Arrays()
    raise ConfigError(
        f'output="{output}" is not for GPUs: TensorFlow takes memory there without saying when it is done; use '
        f'device="cpu", as_tf_dataset() and tf.data.experimental.prefetch_to_device'
    )


def _named(batch: Batch) -> list[tuple[str | None, DeviceArray]]:
    """Returns the batch's arrays on the device with their columns' names; None for `valid`."""
    names = {column.place: name for name, column in batch._columns.items()}
    return [(None if place is None else names[place], array) for place, array in batch._slot.device_arrays()]


def _put(batch: Batch, name: str | None, value: Any) -> None:
    if name is None:
        batch._valid = value
    else:
        batch[name] = value
