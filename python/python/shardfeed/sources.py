"""Sources: the files of a dataset, and the columns that the worker makes of each record."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy.typing as npt

from shardfeed import operations as arguments
from shardfeed._native import NativeOutline
from shardfeed.column_specs import SHOWN_MAX, ColumnSpec, listed, no_column
from shardfeed.dtypes import DType
from shardfeed.dtypes import dtype_name as _dtype
from shardfeed.equivalents import no_method
from shardfeed.errors import ConfigError
from shardfeed.features import Feature, ForeignFeature, checked, to_native
from shardfeed.operations import Operator
from shardfeed.options import CompressionChoice, Corrupt, flag, suggesting
from shardfeed.sample_methods import SampleMethods
from shardfeed.sample_methods import operator as _operator
from shardfeed.sizes import whole_number
from shardfeed.tables import Table


@dataclass(frozen=True, repr=False, slots=True)
class Source(SampleMethods):
    """Files of a dataset, and the columns that workers make of each record.

    Returned by `source`, `from_arrays`, `from_generator`, `from_tfds`, `open_source` and
    `write_dataset`; read it with `Loader(source, batch_size=...)`.

        source = sf.source("train-*.tfrecord", {
            "image": sf.FixedLenFeature((), "string"),
            "label": sf.FixedLenFeature((), "int64"),
        })
        source = source.decode_image("image").resize("image", (224, 224)).normalize("image", MEAN, STD)

    A source is immutable: each method returns another source with one more operator, and reads no
    records. Operators run in the worker, in this order, on each record. Most make one column, and may
    replace its input: `output` defaults to the input's name. Shapes and axes are those of one row,
    without the batch dimension. The operators are part of the job: a state requires the same ones.
    docs/OPERATORS.md defines each for every input, and lists the comparisons with TensorFlow.

    All methods raise `ConfigError` at once for an invalid argument, a column that does not exist,
    and a column whose type or shape does not fit. Files are found, and an index is opened, by the
    loader. `FeatureError`s
    in their descriptions are raised by the loop, with file, offset and record.

    - `files`: paths, patterns and URLs; the shards are sorted by path. `dataset`: name of a dataset registered in the
      cluster, instead of files.
    - `compression`: of the files. `records`: number of records, if known. `index`: folder or URL of
      the index that hosts share.
    """

    files: tuple[str, ...]
    dataset: str | None
    compression: Literal["auto", "none", "gzip", "zlib"]
    records: int | None
    _features: dict[str, Feature] | None
    _sequence_features: dict[str, Feature] | None
    _outline: NativeOutline = field(compare=False)
    _operators: tuple[Operator, ...] = ()
    #: Operators after `on_device()`; None: without it.
    _device_operators: tuple[Operator, ...] | None = None
    #: Expression of the records that are samples; None: all records.
    _filter: str | None = None
    #: Indexes of the operators that make columns for the expressions.
    _measured: tuple[int, ...] = ()
    #: Columns and settings of rows that are samples, as JSON; None: records or packs are samples.
    _unbatch: str | None = None
    #: Expression of the rows that are samples; None: all rows.
    _filter_rows: str | None = None
    #: Columns and settings of packs, as JSON; None: records or rows are samples.
    _pack: str | None = None
    #: Columns and settings of windows, as JSON; None: records, rows or packs are samples.
    _window: str | None = None
    #: Cost of a sample and window of balanced steps, as JSON; None: steps are not balanced.
    _balance: str | None = None
    index: str | None = None
    #: Result of `count()`; None: it was not called. Other sources made of this one do not have it.
    _counted: int | None = field(default=None, init=False, compare=False)

    @property
    def features(self) -> Mapping[str, Feature] | None:
        """Features of the records; None: raw records."""
        return None if self._features is None else MappingProxyType(self._features)

    @property
    def sequence_features(self) -> Mapping[str, Feature] | None:
        """Features of the feature lists of `tf.train.SequenceExample`s."""
        return None if self._sequence_features is None else MappingProxyType(self._sequence_features)

    @property
    def columns(self) -> dict[str, ColumnSpec]:
        """Columns after the last operator, in the order of a batch: kind, dtype and shape."""
        named: dict[str, ColumnSpec] = {}
        kind: Any
        for name, kind, dtype, shape in self._outline.columns():
            named[name] = ColumnSpec(kind, "string" if dtype == "bytes" else dtype, tuple(shape))
        return named

    def parse(
        self,
        features: Mapping[str, Feature | ForeignFeature] | None,
        *,
        sequence_features: Mapping[str, Feature | ForeignFeature] | None = None,
    ) -> Source:
        """Returns a source of raw records, such as that of `write_dataset`, with these features; see
        `source` for them. Raises `ConfigError` for a source that has features or operators."""
        if self._features is not None or self._sequence_features is not None or self._operators or self._filter or self._unbatch or self._pack or self._window or self._balance:
            raise ConfigError("parse() is for raw records; this source has features, operators, a filter, unbatch, pack, window or balance already")
        ours, lists = checked(features), checked(sequence_features, "sequence_features")
        outline = NativeOutline(to_native(ours), to_native(lists))
        return dataclasses.replace(self, _features=ours, _sequence_features=lists, _outline=outline)

    @suggesting
    def count(
        self,
        *,
        corrupt: Corrupt = "error",
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> int:
        """Returns the number of samples of an epoch: records, or what `filter`, `unbatch`, `pack` and `window` make of them.

        Reads each file if its samples are not in the cache directory: once for the records' places, once
        for their samples. Keeps the result there, so that the first loader of this source starts at once.
        Shows its progress on a terminal. The arguments are those of `Loader`, and the errors those of
        opening one; `ConfigError` for a dataset of a cluster.
        """
        from shardfeed.loader import Loader

        if self.dataset is not None:
            raise ConfigError(
                f"count() reads files, and dataset={self.dataset!r} is known to a coordinator only: "
                f"`shardfeed dataset show {self.dataset}` shows its records"
            )
        with Loader(self, batch_size=1, rank=0, world_size=1, corrupt=corrupt, cache_dir=cache_dir) as loader:
            object.__setattr__(self, "_counted", loader.samples)
            return loader.samples

    def with_files(
        self, files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, records: int | None = None
    ) -> Source:
        """Returns the same columns of other files: copies in a store, or those of the validation.

        - `files`, `records`: as for `source`.
        """
        known = None if records is None else whole_number("records", records, 0)
        return dataclasses.replace(self, files=_paths(files), dataset=None, records=known)

    def with_index(self, index: str | os.PathLike[str]) -> Source:
        """Returns this source with an index that hosts share; see `source`."""
        return dataclasses.replace(self, index=os.fspath(index))

    # Operators on columns of any shape.

    @_operator
    def decode_raw(
        self,
        input: str,
        dtype: DType,
        shape: Sequence[int | str] | int,
        *,
        little_endian: bool = True,
        fixed_length: int | None = None,
        output: str | None = None,
    ) -> Source:
        """Converts the bytes of a string to numbers of `dtype` and `shape`, as `tf.io.decode_raw`.

        - `input`: one byte string per row, or a dimension of them, such as those of a window: `[n]`
          strings become `[n, ...]` numbers.
        - `fixed_length`: bytes to which every string is truncated or padded with zeros. None: a
          string of another length is a `FeatureError`.
        - `shape`: with names of int64 columns, `("height", "width", 3)`, it is the shape of an
          image, and differs from row to row, as for `decode_image`.
        """
        fields: dict[str, Any] = {
            "dtype": _dtype(dtype),
            "shape": arguments.dims_of("shape", shape),
            "little_endian": flag("little_endian", little_endian),
        }
        if fixed_length is not None:
            fields["fixed_length"] = arguments.size_of("fixed_length", fixed_length)
        return self._then("decode_raw", input, output, fields)

    @_operator
    def cast(self, input: str, dtype: DType, *, output: str | None = None) -> Source:
        """Converts numbers of any shape to another type, as `tf.cast`.

        Integers wrap around. A float out of range of an integer type becomes its largest or
        smallest value, and NaN becomes 0 (undefined in TensorFlow).
        """
        return self._then("cast", input, output, {"dtype": _dtype(dtype)})

    @_operator
    def reshape(self, input: str, shape: Sequence[int | str] | int, *, output: str | None = None) -> Source:
        """Changes the shape of numbers, as `tf.reshape`; one size may be -1.

        With names of int64 columns it is the shape of an image, and differs from row to row, as for
        `decode_image`. Raises `ConfigError` if the number of values differs.
        """
        return self._then("reshape", input, output, {"shape": arguments.dims_of("shape", shape, -1)})

    @_operator
    def unpack_bits(
        self, input: str, *, bit_order: Literal["big", "little"] = "big", output: str | None = None
    ) -> Source:
        """Expands each uint8 to eight uint8, 0 or 1, as `np.unpackbits(x, axis=-1)`: `[..., n]`
        becomes `[..., 8 * n]`."""
        order = arguments.one_of("bit_order", bit_order, ("big", "little"))
        return self._then("unpack_bits", input, output, {"bit_order": order})

    @_operator
    def scale(
        self,
        input: str,
        scale: float | Sequence[float] = 1.0,
        offset: float | Sequence[float] = 0.0,
        *,
        dtype: DType = "float32",
        output: str | None = None,
    ) -> Source:
        """Computes `x * scale + offset` of numbers of any shape.

        - `scale`, `offset`: one value for all, or one for each index of the last dimension.
        - `dtype`: of computation and result, float32 or float64.
        """
        fields = {
            "scale": arguments.floats_of("scale", scale),
            "offset": arguments.floats_of("offset", offset),
            "dtype": _dtype(dtype),
        }
        return self._then("scale", input, output, fields)

    @_operator
    def normalize(
        self,
        input: str,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        *,
        dtype: DType = "float32",
        output: str | None = None,
    ) -> Source:
        """Computes `(x - mean) / std` of numbers of any shape.

        - `mean`, `std`: one value for all, or one for each index of the last dimension; no `std` is
          0.
        - `dtype`: of computation and result, float32 or float64.
        """
        fields = {
            "mean": arguments.floats_of("mean", mean),
            "std": arguments.floats_of("std", std),
            "dtype": _dtype(dtype),
        }
        return self._then("normalize", input, output, fields)

    @_operator
    def transpose(self, input: str, perm: Sequence[int], *, output: str | None = None) -> Source:
        """Permutes the dimensions of numbers to the order `perm`, as `tf.transpose`."""
        return self._then("transpose", input, output, {"perm": arguments.sizes_of("perm", perm)})

    @_operator
    def slice(
        self, input: str, begin: Sequence[int], size: Sequence[int], *, output: str | None = None
    ) -> Source:
        """Returns a part of each dimension of numbers, as `tf.slice`; a size of -1 means the
        rest."""
        fields = {"begin": arguments.sizes_of("begin", begin), "size": arguments.sizes_of("size", size, -1)}
        return self._then("slice", input, output, fields)

    @_operator
    def select(self, input: str, indices: Sequence[int], *, axis: int = 0, output: str | None = None) -> Source:
        """Selects indices of a dimension of numbers, in the given order, as `tf.gather(x, indices,
        axis)` without the batch."""
        fields = {"indices": arguments.sizes_of("indices", indices), "axis": arguments.size_of("axis", axis)}
        return self._then("select", input, output, fields)

    @_operator
    def one_hot(
        self,
        input: str,
        depth: int,
        *,
        on: float = 1.0,
        off: float = 0.0,
        dtype: DType = "float32",
        output: str | None = None,
    ) -> Source:
        """Adds a last dimension of size `depth` to integers: `on` at the index given by the
        integer, `off` elsewhere, as `tf.one_hot`. An integer out of range gives only `off`."""
        fields = {
            "depth": arguments.size_of("depth", depth),
            "on": arguments.float_of("on", on),
            "off": arguments.float_of("off", off),
            "dtype": _dtype(dtype),
        }
        return self._then("one_hot", input, output, fields)

    @_operator
    def padded_batch(
        self,
        input: str,
        length: int,
        *,
        value: float = 0,
        truncate: bool = False,
        output: str | None = None,
    ) -> Source:
        """Pads each row of a `VarLenFeature` of int64 or float32 with `value` to `[length]`, as
        `tf.data`'s `padded_batch(..., [length], value)`.

        A longer row is a `FeatureError`, or with `truncate` is truncated. Padding to the longest
        row of the batch needs no operator: use `FixedLenSequenceFeature`, with `batch.lengths()`.
        """
        fields = {
            "length": arguments.size_of("length", length),
            "value": arguments.float_of("value", value),
            "truncate": flag("truncate", truncate),
        }
        return self._then("padded_batch", input, output, fields)

    @_operator
    def pad(
        self,
        input: str,
        size: Sequence[int] | int,
        *,
        value: float = 0,
        side: Literal["start", "end", "both"] = "end",
        truncate: bool = False,
        output: str | None = None,
    ) -> Source:
        """Fills the first dimensions up to `size` with `value`; other dimensions are unchanged.

        - `input`: numbers `[n, ...]`; rows of any number of values, which then have the shape
          `[size, ...]`; or images of any size, `size=(height, width)`.
        - `size`: a whole number for the first dimension, or a sequence of them.
        - `side`: where values are added: at the end, at the start, or half of them on each side, of
          an odd number the larger half at the end.
        - `truncate`: longer dimensions are cut on the same side. False: they are a `FeatureError`,
          or a `ConfigError` if all rows have them. With side="both", images become those of
          `tf.image.resize_with_crop_or_pad`.
        """
        fields = {
            "size": arguments.sizes_of("size", size),
            "value": arguments.float_of("value", value),
            "side": arguments.one_of("side", side, ("start", "end", "both")),
            "truncate": flag("truncate", truncate),
        }
        return self._then("pad", input, output, fields)

    # Images.

    @_operator
    def decode_image(
        self,
        input: str,
        channels: int = 3,
        *,
        dtype: DType = "uint8",
        size: Sequence[int] | None = None,
        output: str | None = None,
    ) -> Source:
        """Decodes JPEG and PNG strings to images `[height, width, channels]`, as
        `tf.io.decode_image`. Of several strings in a row, `[n]`, each: `[n, height, width, channels]`.

        JPEG pixels are bit-identical to `tf.io.decode_jpeg(dct_method="INTEGER_ACCURATE")`. Sizes
        may differ from row to row: `resize` or a crop must make them equal before they are batched.
        Orientation metadata is ignored. An image that cannot be decoded is a `FeatureError`.

        - `input`: one byte string per row, or a dimension of them, such as the frames of
          `unbatch(offsets=...)`. Random operators change all images of a row alike.
        - `channels`: 1 grey, 3 red, green, blue, 4 with alpha. `dtype`: uint8, or uint16 for PNG.
        - `size`: (height, width) of all images; another size is a `FeatureError`.
        """
        fields: dict[str, Any] = {"channels": arguments.size_of("channels", channels), "dtype": _dtype(dtype)}
        if size is not None:
            fields["size"] = arguments.pair_of("size", size)
        return self._then("decode_image", input, output, fields)

    @_operator
    def crop(
        self,
        input: str,
        size: Sequence[int] | int | None = None,
        *,
        offset: Sequence[int] | None = None,
        box: str | None = None,
        format: Literal["yxyx", "xyxy", "xywh"] = "yxyx",
        normalized: bool = True,
        output: str | None = None,
    ) -> Source:
        """Crops images to (height, width) pixels: centered, or from row and pixel `offset`, as
        `tf.image.crop_to_bounding_box`. A smaller image is a `FeatureError`.

        With `box` instead of `size`, crops each image to the box of its row; follow it with
        `resize` or `pad`. Each edge of a box is rounded to the nearest edge of a pixel, halves to
        even. A box that has no pixels or does not lie in its image is a `FeatureError`.

        - `input`: images, or numbers `[height, width, channels]`.
        - `box`: column of numbers `[4]`; `concat` makes it of four columns.
        - `format`: "yxyx" (top, left, bottom, right: TensorFlow), "xyxy" (left, top, right, bottom:
          torchvision) or "xywh" (left, top, width, height: COCO).
        - `normalized`: the numbers are fractions of the image's height and width, from 0 to 1; False:
          they are pixels.
        """
        fields: dict[str, Any] = {}
        normalized = flag("normalized", normalized)
        if size is not None:
            fields["size"] = arguments.pair_of("size", size)
        if offset is not None:
            fields["offset"] = arguments.pair_of("offset", offset)
        if box is not None:
            fields["box"] = {
                "column": self._box(arguments.name_of(box)),
                "format": arguments.one_of("format", format, ("yxyx", "xyxy", "xywh")),
                "normalized": normalized,
            }
        elif format != "yxyx" or not normalized:
            raise ConfigError("format and normalized describe a box; pass box= with the name of its column")
        return self._then("crop", input, output, fields)

    def _box(self, name: str) -> str:
        found = self.columns.get(name)
        if found is not None and found.kind in ("ragged", "padded", "sparse"):
            raise ConfigError(
                f"a box is four numbers of a fixed shape, [4], but {name!r} is {found}; if a record has several "
                f"boxes, unbatch() makes a sample of each"
            )
        return name

    @_operator
    def random_crop(self, input: str, size: Sequence[int] | int, *, output: str | None = None) -> Source:
        """Crops images to (height, width) pixels at a uniformly random position, as
        `tf.image.random_crop`. A smaller image is a `FeatureError`.

        Random numbers are keyed by the job's seed, the epoch, the sample and the operator's
        position: the same on any rank and after any resume.
        """
        return self._then("random_crop", input, output, {"size": arguments.pair_of("size", size)})

    @_operator
    def random_resized_crop(
        self,
        input: str,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        *,
        output: str | None = None,
    ) -> Source:
        """Crops a random area, `scale` times the image's, with a random aspect ratio (width by
        height) in `ratio`, at a random position; follow it with `resize`. Keyed as `random_crop`.

        Tries ten times; if no candidate lies within the image, takes the largest centered part with
        a ratio in `ratio`.
        """
        fields = {"scale": arguments.range_of("scale", scale), "ratio": arguments.range_of("ratio", ratio)}
        return self._then("random_resized_crop", input, output, fields)

    @_operator
    def resize(
        self,
        input: str,
        size: Sequence[int] | int,
        *,
        method: Literal["nearest", "bilinear", "bicubic"] = "bilinear",
        antialias: bool = True,
        dtype: DType | None = None,
        output: str | None = None,
    ) -> Source:
        """Resizes images to (height, width) pixels, as `tf.image.resize`: `[height, width,
        channels]`.

        - `input`: images of uint8, uint16 or float32 with 1 to 4 channels.
        - `antialias`: when downscaling, each pixel averages all pixels that it covers (TensorFlow's
          default is False).
        - `dtype`: None, the images' own type, with rounding; or float32, as in TensorFlow.
        """
        fields: dict[str, Any] = {
            "size": arguments.pair_of("size", size),
            "method": arguments.one_of("method", method, ("nearest", "bilinear", "bicubic")),
            "antialias": flag("antialias", antialias),
        }
        if dtype is not None:
            fields["dtype"] = _dtype(dtype)
        return self._then("resize", input, output, fields)

    @_operator
    def flip(
        self,
        input: str,
        axis: Literal["horizontal", "vertical"] = "horizontal",
        *,
        probability: float = 0.5,
        output: str | None = None,
    ) -> Source:
        """Mirrors images horizontally or vertically with `probability`; 1.0: always. Keyed as
        `random_crop`."""
        fields = {
            "axis": arguments.one_of("axis", axis, ("horizontal", "vertical")),
            "probability": arguments.float_of("probability", probability),
        }
        return self._then("flip", input, output, fields)

    @_operator
    def color_jitter(
        self,
        input: str,
        brightness: float | tuple[float, float] = 0,
        contrast: float | tuple[float, float] = 0,
        saturation: float | tuple[float, float] = 0,
        hue: float | tuple[float, float] = 0,
        *,
        output: str | None = None,
    ) -> Source:
        """Changes brightness, contrast, saturation and hue by uniformly random factors, in random
        order, as `torchvision.transforms.ColorJitter` on uint8 tensors. Keyed as `random_crop`.

        - `input`: images of uint8 and one size, `[height, width, 3]`, or `[height, width, 1]`,
          which have no saturation and hue.
        - `brightness`, `contrast`, `saturation`: factors from max(0, 1 - x) to 1 + x, or from a
          minimum to a maximum. `hue`: shift from -x to x, or from a minimum to a maximum, from -0.5
          to 0.5 of the color wheel. 0: unchanged.
        """
        given = (("brightness", brightness, 1), ("contrast", contrast, 1), ("saturation", saturation, 1), ("hue", hue, 0))
        ranges = {name: arguments.jitter_of(name, value, center) for name, value, center in given}
        return self._then("color_jitter", input, output, {name: both for name, both in ranges.items() if both})

    @_operator
    def layout(self, input: str, to: Literal["chw", "hwc"] = "chw", *, output: str | None = None) -> Source:
        """Transposes images of one size from channels last to channels first, `[channels, height,
        width]`, or vice versa; of several images in a row, each."""
        return self._then("layout", input, output, {"to": arguments.one_of("layout", to, ("chw", "hwc"))})

    # Other columns.

    @_operator
    def lookup(
        self,
        input: str,
        table: str | os.PathLike[str] | Table,
        column: str | None = None,
        *,
        missing: float | str | bytes = "error",
        output: str | None = None,
    ) -> Source:
        """Adds the rows of `table` for the keys in `input`, as `tf.lookup.StaticHashTable`.

        The keys are integers or byte strings, one per row or of any fixed shape; the output has a
        row of the table for each key. The table is a file of `write_table` that every worker opens
        under the same path; its content is part of the job. A path is opened here, to read the
        table's columns.

        - `column`: column of the table; optional if it has only one. Also the default name of the
          output.
        - `missing`: "error", a `FeatureError`, or the number or string (in UTF-8) to use for a key
          that is not in the table.

        To look up strings, the keys must be a column of the record with a fixed shape, which may be
        renamed, or a `constant`. To look up numbers, another operator may have made the keys.
        """
        found = table if isinstance(table, Table) else Table(table)
        if column is None:
            if len(found.columns) != 1:
                raise ConfigError(f"{found.path} has the columns {', '.join(found.columns)}; say which")
            column = next(iter(found.columns))
        if column not in found.columns:
            raise ConfigError(f"{found.path} has no column {column!r}, but {', '.join(found.columns)}")
        keys = self.columns.get(arguments.name_of(input))
        if keys is not None and keys.kind != "images" and (keys.dtype == "string") != (found.key == "bytes"):
            raise ConfigError(f"the keys of {found.path} are {found.key}, but {input!r} is {keys}")
        dtype, shape = found.columns[column]
        fields: dict[str, Any] = {
            "table": {"digest": found.digest, "path": found.path},
            "column": column,
            "dtype": "bytes" if dtype == "string" else _dtype(dtype),
            "shape": list(shape),
        }
        if isinstance(missing, bytes) or (isinstance(missing, str) and missing != "error"):
            fields["missing"] = arguments.text_of("missing", missing)
        elif missing != "error":
            fields["missing"] = arguments.float_of("missing", missing)
        return self._then("lookup", input, column if output is None else output, fields)

    @_operator
    def rename(self, input: str, output: str) -> Source:
        """Gives a column of any kind another name, which no other column may have. Its place among
        the columns and its values are unchanged."""
        name = arguments.name_of(input)
        return self._with(Operator(arguments.name_of(output), {"rename": {"input": name}}), name)

    @_operator
    def concat(self, inputs: Sequence[str], output: str, *, axis: int = 0) -> Source:
        """Adds a column of numeric columns end to end along dimension `axis`, as `np.concatenate`.

        - `inputs`: one column or more of numbers, of one type, and of one shape except for dimension `axis`.
        - `axis`: 0 to the number of dimensions of a row; not negative. The number of dimensions stacks
          the columns along a new last one, as `np.stack(axis=-1)`: with axis=0 four columns of one
          number each become a box `[4]`. A smaller number joins them along this dimension.
        """
        if isinstance(inputs, str) or not isinstance(inputs, Sequence):
            raise ConfigError(f"inputs is a sequence of columns' names, not {inputs!r}")
        names = [arguments.name_of(name) for name in inputs]
        fields: dict[str, object] = {"inputs": names, "axis": arguments.size_of("axis", axis)}
        return self._with(Operator(arguments.name_of(output), {"concat": fields}), None)

    @_operator
    def constant(self, output: str, value: npt.ArrayLike, dtype: DType | None = None) -> Source:
        """Adds a column with the same value in every row.

        - `value`: a number, a str or bytes in UTF-8, or an array or nested list of them; its shape
          is that of a row.
        - `dtype`: of numbers. None: that of a numpy value; else int64 for integers, float32 for
          floats, bool for bools.
        """
        fields = arguments.constant_of(value, dtype)
        return self._with(Operator(arguments.name_of(output), {"constant": fields}), None)

    @_operator
    def compute(self, output: str, expression: str, dtype: DType = "float32") -> Source:
        """Adds the value of an expression over columns of one number per row, computed in float64
        and cast to `dtype`.

        Supports numbers, column names, `+ - * /`, `< <= > >= == !=`, `and or not`, parentheses, and
        `abs exp floor log max min sign sqrt tanh where(condition, yes, no)`. True is 1 and false is
        0. Names with characters other than letters, digits and `_` must be enclosed in backticks.
        """
        if not isinstance(expression, str):
            raise ConfigError(f"expression is a str, not {expression!r}")
        fields: dict[str, object] = {"expression": expression, "dtype": _dtype(dtype)}
        return self._with(Operator(arguments.name_of(output), {"compute": fields}), None)

    def on_device(self) -> Source:
        """Returns this source with later operators run by the GPU of `Loader(device="cuda")`, after
        the copy, so that less data crosses the bus.

            source.decode_image("image").resize("image", 224).on_device().normalize("image", MEAN, STD).layout("image")

        Only `cast`, `normalize` and `layout` may follow, without `output`; results are
        bit-identical to the worker's. They are not part of the order: a state is valid with others.
        With device="cpu" the worker runs them, after all others; then they are part of it. See
        docs/GPU.md.
        """
        return self if self._device_operators is not None else dataclasses.replace(self, _device_operators=())

    def _tables(self, operators: Sequence[int] | None = None) -> list[tuple[str, str]]:
        """Returns digest and path of the tables of `lookup`, of all operators or of some."""
        chosen = self._operators if operators is None else [self._operators[at] for at in operators]
        tables: list[Any] = [one.operation["lookup"]["table"] for one in chosen if one.method == "lookup"]
        return [(table["digest"], table["path"]) for table in tables]

    def _then(self, method: str, input: str, output: str | None, fields: dict[str, Any]) -> Source:
        name = arguments.name_of(input)
        made = name if output is None else arguments.name_of(output)
        return self._with(Operator(made, {method: {"input": name, **fields}}), name)

    def _with(self, operator: Operator, input: str | None) -> Source:
        """Returns the source with one more operator, if the native schema accepts it."""
        on_device = self._device_operators
        try:
            outline = self._outline.then(operator.json(), on_device is not None)
        except KeyError as error:
            raise ConfigError(no_column(error.args[0], self.columns)) from None
        except ConfigError as error:
            columns = self.columns
            there = f"{input!r} is {columns[input]}" if input in columns else f"the columns are {listed(columns)}"
            raise ConfigError(f"{error}; {there}") from None
        if on_device is not None:
            return dataclasses.replace(self, _outline=outline, _device_operators=(*on_device, operator))
        return dataclasses.replace(self, _outline=outline, _operators=(*self._operators, operator))

    def __repr__(self) -> str:
        where = self.dataset if self.dataset is not None else self.files[0] if self.files else ""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        records = "" if self.records is None else f", {self.records} records"
        records += "" if self._filter is None else f", filter {self._filter!r}"
        records += "" if self._unbatch is None else f", unbatch {arguments.shown_rows(self._unbatch)}"
        records += "" if self._pack is None else f", pack {self._pack}"
        records += "" if self._window is None else f", window {self._window}"
        records += "" if self._filter_rows is None else f", filter of rows {self._filter_rows!r}"
        records += arguments.shown_balance(self._balance)
        columns = self.columns
        lines = [f"\n    {name}: {column}" for name, column in list(columns.items())[:SHOWN_MAX]]
        rest = f"\n    and {len(columns) - SHOWN_MAX} more" if len(columns) > SHOWN_MAX else ""
        return f"Source({where!r}{more}{records}){''.join(lines)}{rest}"

    def __reduce__(self) -> tuple[Any, ...]:
        given = self.files, self.dataset, self.compression, self.records, self.index, self._features, self._sequence_features
        samples = self._filter, self._measured, self._unbatch, self._filter_rows, self._pack, self._window, self._balance
        return _rebuilt, (given, self._operators, self._device_operators, samples)

    if not TYPE_CHECKING:

        def __len__(self) -> NoReturn:
            raise TypeError("a source has no len(): source.count() is the number of its samples, len(loader) that of steps")

        def __bool__(self) -> bool:
            return True

        def __getattr__(self, name: str) -> NoReturn:
            """Raises `AttributeError`, which names the equivalent of a method of tf.data."""
            public = [each for each in dir(Source) if not each.startswith("_")]
            raise AttributeError(no_method(name, public))


@suggesting
def source(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    features: Mapping[str, Feature | ForeignFeature] | None = None,
    *,
    sequence_features: Mapping[str, Feature | ForeignFeature] | None = None,
    dataset: str | None = None,
    compression: CompressionChoice = "auto",
    records: int | None = None,
    index: str | os.PathLike[str] | None = None,
) -> Source:
    """Returns a `Source` of TFRecord files. Reads nothing.

    - `files`: path, glob, or a list of them; "@whole.txt" for the files listed in a text file, one
      per line; or URLs such as "s3://bucket/train/*.tfrecord", gs://, az:// or https:// (no
      patterns). Credentials come from the environment. docs/DATASETS.md describes all of these.
    - `features`: name to `FixedLenFeature`, `VarLenFeature`, `FixedLenSequenceFeature`,
      `RaggedFeature` or `SparseFeature`, or the `tf.io` features; None: raw records under "record".
    - `sequence_features`: name to `FixedLenSequenceFeature`, `VarLenFeature` or `RaggedFeature` of
      the feature lists of `tf.train.SequenceExample`s; `features` has the context, by other names.
    - `dataset`: name of a dataset registered in the cluster, instead of `files`.
    - `compression`: "auto", "none", "gzip" or "zlib".
    - `records`: number of records, if known. A loader raises `ShardChangedError` if the files hold
      another number.
    - `index`: folder or URL that all hosts can reach, for the numbers of records and samples of the
      files. A loader without `coordinator=` takes from it what the cache of its host lacks, so that
      it need not read the files before the first batch, and adds what it had to read files for. The
      folder exists; `shardfeed dataset index` makes it, and fills it. With `coordinator=` it is that
      of the workers (`shardfeed worker start --index`), or the index of this process if it reads the
      files itself; another one is a `ConfigError`. Coordinators keep these numbers without an index.

    Raises `ConfigError` for invalid features and arguments.
    """
    if (files is None) == (dataset is None):
        raise ConfigError("pass files, or dataset= with a name that the cluster knows")
    paths = () if files is None else _paths(files)
    compression = compression or "none"
    if compression not in ("auto", "none", "gzip", "zlib"):
        raise ConfigError(f'compression={compression!r} is none of "auto", "none", "gzip" and "zlib"')
    known = None if records is None else whole_number("records", records, 0)
    ours, lists = checked(features), checked(sequence_features, "sequence_features")
    outline = NativeOutline(to_native(ours), to_native(lists))
    place = None if index is None else os.fspath(index)
    return Source(paths, dataset, compression, known, ours, lists, outline, index=place)


def _paths(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    return tuple(os.fspath(file) for file in ([files] if isinstance(files, str | os.PathLike) else files))


def _rebuilt(
    given: tuple[Any, ...],
    operators: tuple[Operator, ...],
    device_operators: tuple[Operator, ...] | None,
    samples: tuple[Any, ...],
) -> Source:
    """Returns the source that was pickled with these fields."""
    outline = NativeOutline(*(to_native(features) for features in given[-2:]))
    _, _, unbatch, _, pack, window, _ = samples
    if unbatch is not None:
        outline = outline.unbatch(unbatch)
    if pack is not None:
        outline = outline.pack(pack)
    if window is not None:
        outline = outline.window(window)
    for operator in operators:
        outline = outline.then(operator.json(), False)
    for operator in device_operators or ():
        outline = outline.then(operator.json(), True)
    files, dataset, compression, records, index, features, lists = given
    source = Source(
        files, dataset, compression, records, features, lists, outline, operators, device_operators, *samples
    )
    return dataclasses.replace(source, index=index)
