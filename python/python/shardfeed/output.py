"""Types of dense columns: numpy arrays, or tensors of a framework that view the same memory."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardfeed.dtypes import as_numpy
from shardfeed.errors import ConfigError
from shardfeed.options import OutputName

if TYPE_CHECKING:
    from shardfeed.batch import Batch

Array = npt.NDArray[Any]


class Output:
    """Numpy arrays, unchanged."""

    name: OutputName = "numpy"
    #: The framework's module.
    framework: Any = np

    def storage(self, dtype: str) -> Any:
        """Returns the numpy type in which `tensor` accepts the bytes of a column of type
        `dtype`."""
        return as_numpy(dtype)

    def tensor(self, array: Array, dtype: str, column: str) -> Any:
        """Returns a tensor of a column's array of type `storage`; it keeps the array alive."""
        return array

    def view(self, array: Array, column: str = "values") -> Any:
        """Returns a tensor of any array of numbers."""
        dtype = array.dtype.name
        self.check([(column, dtype)])
        return self.tensor(array.view(self.storage(dtype)), dtype, column)

    def fill(self, batch: Batch) -> None:
        """Puts the columns on a device into a new batch. Columns on the host are created on
        access."""

    def check(self, dtypes: Iterable[tuple[str, str]]) -> None:
        """Rejects columns, as (name, type), that are not supported. Raises `ConfigError`."""
        for _, dtype in dtypes:
            self.storage(dtype)


class Torch(Output):
    """`torch.Tensor` on the CPU. Writing to it writes to the batch."""

    name = "torch"

    def __init__(self) -> None:
        self.framework = _import("torch", "torch")

    def storage(self, dtype: str) -> Any:
        # Viewed as bfloat16 afterwards, so ml_dtypes is not needed.
        return np.dtype(np.int16) if dtype == "bfloat16" else np.dtype(dtype)

    def tensor(self, array: Array, dtype: str, column: str) -> Any:
        tensor = self.framework.from_numpy(array)
        return tensor.view(self.framework.bfloat16) if dtype == "bfloat16" else tensor

    def check(self, dtypes: Iterable[tuple[str, str]]) -> None:
        for column, dtype in dtypes:
            if not hasattr(self.framework, dtype):
                raise ConfigError(
                    f"column {column!r} is {dtype}, which torch {self.framework.__version__} does not have; "
                    f"make it another type with source.cast(), or use torch 2.3 or later"
                )


class Jax(Output):
    """`jax.Array` on the CPU. 64-bit types are copied to 32 bits unless jax_enable_x64 is on, as in
    JAX."""

    name = "jax"

    def __init__(self) -> None:
        self.framework = _import("jax", "jax")

    def tensor(self, array: Array, dtype: str, column: str) -> Any:
        jax = self.framework
        narrow = narrowed(array, column)
        if dtype == "bfloat16" or narrow is not array:
            # DLPack of numpy has no bfloat16. A column is aligned, so this does not copy either.
            return jax.device_put(narrow, jax.local_devices(backend="cpu")[0], may_alias=True)
        return jax.dlpack.from_dlpack(array)


class TensorFlow(Output):
    """Eager `tf.Tensor` on the CPU."""

    name = "tf"

    def __init__(self) -> None:
        self.framework = _import("tensorflow", "tf")

    def storage(self, dtype: str) -> Any:
        return np.dtype(np.uint16) if dtype == "bfloat16" else np.dtype(dtype)

    def tensor(self, array: Array, dtype: str, column: str) -> Any:
        tf = self.framework
        if array.ctypes.data % _TF_ALIGNMENT:
            tensor = tf.constant(array)  # not a column of a batch, but computed from one
        else:
            tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        return tf.bitcast(tensor, tf.bfloat16) if dtype == "bfloat16" else tensor


#: Alignment required by TensorFlow's kernels. Columns are aligned to 256 bytes.
_TF_ALIGNMENT = 64

_OUTPUTS: dict[str, type[Output]] = {each.name: each for each in (Output, Torch, Jax, TensorFlow)}


def find(output: str) -> Output:
    """Returns the output of this name; imports its framework. Raises `ConfigError`."""
    check_name(output)
    return _OUTPUTS[output]()


def check_name(output: str) -> None:
    """Raises `ConfigError` if there is no such output."""
    if output not in _OUTPUTS:
        raise ConfigError(f"output={output!r} is none of {', '.join(map(repr, _OUTPUTS))}")


def narrowed(array: Array, column: str) -> Array:
    """Returns the array with 32-bit types where JAX has no 64-bit types.

    Raises `OverflowError` for numbers that JAX would silently wrap around.
    """
    if array.dtype not in (np.int64, np.float64) or _import("jax", "jax").config.jax_enable_x64:
        return array
    if array.dtype == np.float64:
        return array.astype(np.float32)
    narrow = array.astype(np.int32)
    wrong = array[narrow != array]
    if len(wrong):
        raise OverflowError(
            f"column {column!r} has {wrong[0]}, which does not fit into int32, and JAX has no int64 here; turn it on "
            f'with jax.config.update("jax_enable_x64", True), or make another type with source.cast()'
        )
    return narrow


def _import(module: str, output: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ConfigError(
            f'output="{output}" needs {module}, which is not installed here: pip install {module}'
        ) from None
