"""Methods of a `Source` that determine its samples and their steps: filter, unbatch, pack, window, balance."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, cast

from shardfeed import operations as arguments
from shardfeed._native import NativeOutline
from shardfeed.errors import ConfigError
from shardfeed.features import Feature
from shardfeed.operations import Operator
from shardfeed.options import suggesting
from shardfeed.sizes import whole_number

P = ParamSpec("P")
S = TypeVar("S")


def operator(function: Callable[Concatenate[S, P], S]) -> Callable[Concatenate[S, P], S]:
    """Wraps a method: its errors name it and its column."""
    function.__qualname__ = f"Source.{function.__name__}"  # also where `SampleMethods` has it
    call = suggesting(function)

    @functools.wraps(function)
    def named(self: S, /, *given: P.args, **options: P.kwargs) -> S:
        try:
            return call(self, *given, **options)
        except ConfigError as error:
            named_column = options.get("input", options.get("output", options.get("expression")))
            column = next(iter(given), named_column)
            shown = "" if column is None else repr(column)
            raise ConfigError(f"{function.__name__}({shown}): {error}") from None

    return named


def balanced(source: SampleMethods, by: str, window: int, *, is_of_mixture: bool = False) -> tuple[str, tuple[int, ...]]:
    """Returns the settings of balanced steps as JSON, and the operators that make columns for all expressions.

    - `by`, `window`: as for `Source.balance`, or `Mixture.balance`.
    """
    if not isinstance(by, str):
        raise ConfigError(f"by is the cost of a sample, an expression as str, not {by!r}")
    spec = {"by": by, "window": whole_number("window", window, 1)}
    others = [one for one in (source._filter, source._filter_rows) if one is not None]
    text, measured = source._outline.balance(json.dumps(spec), others, list(source._measured), is_of_mixture)
    return json.dumps(spec | {"by": text}), source._on_worker(measured)


class SampleMethods:
    """Methods of `Source` that determine which samples its records have, and which share a step."""

    __slots__ = ()

    if TYPE_CHECKING:
        _features: dict[str, Feature] | None
        _sequence_features: dict[str, Feature] | None
        _outline: NativeOutline
        _operators: tuple[Operator, ...]
        _filter: str | None
        _measured: tuple[int, ...]
        _unbatch: str | None
        _filter_rows: str | None
        _pack: str | None
        _window: str | None
        _balance: str | None

    @operator
    def filter(self, expression: str) -> Self:
        """Returns a source whose samples are only the records for which `expression` holds.

            source.filter("width >= 64 and lang in ('en', 'de') and len(tokens) <= 512")

        A loader first reads all files once, verifies them, and keeps the result in its cache
        directory: the number of samples is known before the first batch, so all ranks have equal
        steps, every passing record comes exactly once, and a state is as small as without a filter.
        `loader.samples` is their number. Another filter is another job. Two filters are joined by
        `and`. In a cluster, all workers count together, and the coordinators keep the result.

        - Values: int64 (exact, also compared with floats), float32 (computed in float64), texts in
          quotes compared bytewise with byte strings.
        - Names: columns with one value per record, also those that operators made of it, without
          images; `len(name)` of one byte string, a `VarLenFeature`, `FixedLenSequenceFeature`,
          `RaggedFeature` of uniform row lengths or feature list; `ordinal`, the record's index in its
          file; `shard_path`, relative to the dataset.
        - Operations: `+ - * / // %`, `< <= > >= == !=`, `in (a, b)`, `not in`, `and or not`,
          parentheses, `abs exp floor hash len log max min sign sqrt tanh where(condition, yes, no)`;
          `//` and `%` as in Python; `hash(id) % 10 == 0` holds for a fixed tenth of the values. Names with other characters than letters, digits and `_` are enclosed in
          backticks.
        - False, 0 and NaN: the record is no sample. A division of integers by zero and an integer
          overflow give NaN.

        When the loader is opened, a record that cannot be read or parsed is an error; with
        `corrupt="skip-record"` or `"skip-file"` it is no sample, and is in `loader.skipped`. If no
        record passes, `ConfigError`.
        """
        if not isinstance(expression, str):
            raise ConfigError(f"expression is a str, not {expression!r}")
        before, other = (self._filter_rows, self._filter) if self._unbatch else (self._filter, None)
        others = [] if other is None else [other]
        canonical, indexes = self._outline.filter(expression, before, others, list(self._measured))
        measured = self._on_worker(indexes)
        if self._unbatch:
            return cast(Self, dataclasses.replace(cast(Any, self), _filter_rows=canonical, _measured=measured))
        return cast(Self, dataclasses.replace(cast(Any, self), _filter=canonical, _measured=measured))

    @operator
    def unbatch(
        self,
        *columns: str,
        offsets: Mapping[str, tuple[int, int]] | None = None,
        edge: Literal["drop", "repeat", "zero"] = "drop",
        stride: int = 1,
    ) -> Self:
        """Returns a source with a sample for each row of the named columns, such as each box of an image.

            features = {
                "image": sf.FixedLenFeature((), "string"),
                "box": sf.FixedLenSequenceFeature((4,), "float32", allow_missing=True),
                "label": sf.VarLenFeature("int64"),
            }
            crops = sf.source("train-*.tfrecord", features).unbatch("box", "label").filter("label != 0")
            crops = crops.decode_image("image").crop("image", box="box").resize("image", (64, 64))

        A named column of shape [n, ...] becomes one of the row's shape, [...]; all other columns are
        repeated for each row. A record without rows has no samples. As with `filter`, the files are
        read once when a loader is opened, so the number of samples is known, all ranks have equal
        steps, and every row comes exactly once. Rows are shuffled like records.

        - `columns`: `VarLenFeature`, `FixedLenSequenceFeature`, `RaggedFeature` of uniform row lengths, or
          `FixedLenFeature` with a shape and without a default; `RaggedFeature` of one other partition,
          whose rows become ragged columns. Of a feature list each step is a row, that of a
          `VarLenFeature` a ragged one. All have the same number of rows in each record, at most 2^20
          (1,048,576).
        - `filter(...)` before it takes records; after it rows, by the values of a row.
        - Once per source, and before the operators, which run for each row.
        - `offsets`: columns of which a sample has several rows, those from the first to the last
          offset from its own row, both included:

              # An episode's steps, each with the step before it and the next 16 actions.
              steps = episodes.unbatch(
                  "reward", offsets={"state": (-1, 0), "action": (0, 15)}, edge="repeat"
              )

          "state" is then [2, ...] and "action" [16, ...]. Offsets are from -2^20 to 2^20, and a sample has
          at most 4,096 rows of a column.
        - `edge`: rows before the first and after the last row of a record: "drop" (a row that lacks
          one of its rows is no sample), "repeat" (the first or the last row), "zero" (zeros, or empty
          strings). With the latter two a column such as "action_is_pad", bool [16], is True for
          these rows.
        - `stride`: only rows 0, `stride`, 2 * `stride`, ... of each record are samples.

        `FeatureError` when the loader is opened, with file, offset and record, if columns have
        different numbers of rows; with `corrupt="skip-record"` such a record has no samples.
        """
        if not all(isinstance(name, str) for name in columns) or not (columns or offsets):
            raise ConfigError(f"unbatch takes names of columns, not {columns!r}")
        self._check_unbalanced("unbatch")
        if self._unbatch is not None:
            raise ConfigError("this source has unbatch already; name all columns in one call")
        outside = arguments.one_of("edge", edge, ("drop", "repeat", "zero"))
        if outside != "drop" and not offsets:
            raise ConfigError(f"edge={edge!r} is for columns of offsets=; without them a sample has its own row")
        spec = {
            "columns": [{"name": name} for name in columns] + arguments.row_offsets(offsets or {}),
            "edge": outside,
            "stride": whole_number("stride", stride, 1),
        }
        text = json.dumps(spec)
        return cast(Self, dataclasses.replace(cast(Any, self), _unbatch=text, _outline=self._outline.unbatch(text)))

    @operator
    def pack(
        self,
        *columns: str,
        length: int,
        append: float | Mapping[str, float] | None = None,
        long: Literal["split", "truncate", "drop", "error"] = "split",
        method: Literal["fit", "concat"] = "fit",
        block: int = 4096,
        variants: int = 8,
        names: Mapping[Literal["segment_ids", "positions"], str] | None = None,
    ) -> Self:
        """Returns a source whose samples are packs: the tokens of several records in `length` places.

            features = {"tokens": sf.VarLenFeature("int64")}
            packs = sf.source("c4-*.tfrecord", features).pack("tokens", length=2048, append=1)

        Its columns are those named, [length], of the features' types, and of the first one, as
        "tokens", also "tokens_segment_ids" (1, 2, ... for the records in a pack, 0 for padding) and
        "tokens_positions" (0, 1, ... in each segment): int64 [length]. Other features are not in
        packs. Each token that `long` keeps is in exactly one pack of each epoch. The number of packs is known
        before the first batch, so ranks have equal steps. docs/ORDER.md, section 14, defines the packs.

        - `columns`: `VarLenFeature`s, `FixedLenSequenceFeature`s of shape () or `RaggedFeature`s without
          partitions, of int64 or float32, with equally many values in each record, such as tokens and
          loss masks; after `unbatch` its columns of rows with any number of values.
        - `names`: other names of the columns of segments and positions:
          `{"segment_ids": "inputs_segmentation", "positions": "inputs_position"}`.
        - `length`: tokens of a pack, at most 2^30.
        - `append`: value after the tokens of each record, such as an end of text; with several
          columns a dict of all of them.
        - `long`: records of more than `length` tokens: "split" into several parts, "truncate", "drop"
          them, or "error".
        - `method`: "fit" keeps records whole (best fit); "concat" cuts a record where a pack ends, and
          leaves no padding but in the last pack of a file.
        - `block`: records, or parts of split ones, that are packed together, at most 2^20; more need more
          memory. `variants`: number of different packings, at most 64, of which the epochs take turns if
          the loader shuffles.

        `filter(...)` comes before, operators after it. After `unbatch(...)` packs have the tokens of its
        rows, such as the turns of conversations:

            turns = sf.RaggedFeature("int64", partitions=[sf.RaggedFeature.RowLengths("lengths")])
            source = sf.source("talks-*.tfrecord", {"turns": turns, "speaker": sf.VarLenFeature("int64")})
            packs = source.unbatch("turns", "speaker").filter("speaker == 1").pack("turns", length=2048)
        """
        self._check_unbalanced("pack")
        if self._pack is not None:
            raise ConfigError("this source is packed already; name all columns in one call")
        if not columns or not all(isinstance(name, str) for name in columns):
            raise ConfigError(f"pack takes names of columns, not {columns!r}")
        spec = {
            "columns": list(columns),
            "append": arguments.appended(columns, {**(self._features or {}), **(self._sequence_features or {})}, append),
            "length": whole_number("length", length, 1),
            "block": whole_number("block", block, 1),
            "variants": whole_number("variants", variants, 1),
            "long": arguments.one_of("long", long, ("split", "truncate", "drop", "error")),
            "method": arguments.one_of("method", method, ("fit", "concat")),
        }
        text = json.dumps(spec, sort_keys=True)
        packs = cast(Any, dataclasses.replace(cast(Any, self), _pack=text, _outline=self._outline.pack(text)))
        if not isinstance(names or {}, Mapping):
            raise ConfigError(f"names is a dict of segment_ids and positions to names, not {names!r:.60}")
        for what, name in (names or {}).items():
            made = f"{columns[0]}_{arguments.one_of('names', what, ('segment_ids', 'positions'))}"
            packs = packs if name == made else packs.rename(made, name)
        return cast(Self, packs)

    @operator
    def window(
        self,
        *columns: str,
        size: int,
        stride: int | None = None,
        by: str | None = None,
        partial: Literal["drop", "pad", "keep"] = "drop",
    ) -> Self:
        """Returns a source whose samples are windows: `size` consecutive records of a file.

            features = {
                "image": sf.FixedLenFeature((), "string"),
                "video": sf.FixedLenFeature((), "string"),
            }
            clips = sf.source("frames-*.tfrecord", features).window(size=16, stride=8, by="video")
            clips = clips.decode_image("image").resize("image", (112, 112))  # [16, 112, 112, 3]

        Each column gets a first dimension, `[size, ...]`; see `partial`. As with `filter`, the files are read once
        when a loader is opened, so the number of windows is known and all ranks have equal steps.
        Every window comes exactly once in an epoch. Windows are shuffled; their records stay in the
        order of the file. docs/ORDER.md, section 16, defines the windows.

        - `columns`: `FixedLenFeature`s; none named: all features.
        - `size`: records of a window, at most 4,096.
        - `stride`: records from the start of a window to that of the next one; smaller than `size`:
          they overlap; default `size`.
        - `by`: expression like that of `filter`, or the name of a feature: a window has only records
          with equal values that follow each other. Without it the windows of a file follow each other;
          a window never has records of two files.
        - `partial`: windows that begin less than `size` records before the end of their group:
          "drop"; or "pad": samples, of which the last record is repeated. "window_length", int64 [],
          is then the number of records in the window without these repetitions. Or "keep": samples
          with fewer records. All columns are then ragged: a `RaggedColumn` or `RaggedBytesColumn` with
          a row for each record; `pad` makes those of numbers dense. Image operators refuse them.

        `filter(...)` comes before: windows have the records that pass. Operators come after it. For
        windows over the steps of a record use `unbatch(offsets=...)`. After `unbatch(...)` windows have
        consecutive rows, also of several records; `by` is then the value of a row.
        """
        if self._window is not None:
            raise ConfigError("this source has windows already")
        self._check_unbalanced("window")
        if not all(isinstance(name, str) for name in columns):
            raise ConfigError(f"window takes names of columns, not {columns!r}")
        if by is not None and not isinstance(by, str):
            raise ConfigError(f"by is an expression as str, not {by!r}")
        whole = whole_number("size", size, 1)
        rows = [] if self._unbatch is None else [column["name"] for column in json.loads(self._unbatch)["columns"]]
        spec = {
            "columns": list(columns or dict.fromkeys([*(self._features or ()), *rows])),
            "size": whole,
            "stride": whole if stride is None else whole_number("stride", stride, 1),
            "by": by,
            "partial": arguments.one_of("partial", partial, ("drop", "pad", "keep")),
        }
        text = json.dumps(spec, sort_keys=True)
        return cast(Self, dataclasses.replace(cast(Any, self), _window=text, _outline=self._outline.window(text)))

    @operator
    def balance(self, by: str, *, window: int = 4096) -> Self:
        """Returns a source of which samples of similar cost share a step, so that ranks wait less for each other.

            texts = sf.source("c4-*.tfrecord", {"tokens": sf.VarLenFeature("int64")})
            texts.balance("len(tokens)")  # all ranks have short texts at the same steps
            texts.pack("tokens", length=8192).balance("sum_squares")  # the cost of attention

        In each lane, `window` samples are sorted by cost and cut into steps, which come in an order that
        is the same in all lanes. Samples, numbers of steps and equal steps are unchanged; a
        state resumes at any world size. docs/ORDER.md, section 15, defines the order.

        - `by`: cost of a sample, as an expression like that of `filter`: a finite number, not
          negative; without `shard_path`. Of packs "sum_squares": the sum of the squares of their segments' lengths. As
          with `filter`, the files are read once when a loader is opened, but not for packs.
        - `window`: samples of a lane that are sorted together, at most 2^20. Up to twice as many are held
          in memory beside the shuffle window, after another batch size in mid-epoch up to three times;
          a larger one balances better and mixes costs less.

        Call it after `filter`, `unbatch` and `pack`; not with `window`; of a mixture on the mixture. Needs
        mode="deterministic".

        `FeatureError` when the loader is opened, with file, offset and record, for a cost that is
        negative or not finite; with `corrupt="skip-record"` such a record is no sample.
        """
        if self._balance is not None:
            raise ConfigError("this source is balanced already; give the whole cost in one call")
        text, measured = balanced(self, by, window)
        return cast(Self, dataclasses.replace(cast(Any, self), _balance=text, _measured=measured))

    def _on_worker(self, measured: list[int]) -> tuple[int, ...]:
        """Returns the indexes of operators that make columns for expressions, if the worker runs them."""
        if any(at >= len(self._operators) for at in measured):
            raise ConfigError("the device makes a column of this expression: call it before on_device()")
        return tuple(measured)

    def _check_unbalanced(self, method: str) -> None:
        if self._balance is not None:
            raise ConfigError(f"a cost is that of a sample: call {method}() before balance()")
