"""Mixtures: the samples of several sources by weight, as one dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np

from shardfeed import _native
from shardfeed.column_specs import ColumnSpec
from shardfeed.equivalents import no_method
from shardfeed.errors import ConfigError
from shardfeed.features import to_native
from shardfeed.operations import Operator, shown_balance
from shardfeed.operations import to_native as operators_to_native
from shardfeed.options import suggesting
from shardfeed.sample_methods import balanced
from shardfeed.sizes import whole_number
from shardfeed.sources import Source

#: Positive decimal. A text is taken as it is written, a float as Python shows it.
Weight: TypeAlias = float | int | str | Decimal
#: Number of samples of a mixture epoch, or the source that determines it.
Length: TypeAlias = int | Literal["first_exhausted", "all_exhausted"]

_EXHAUSTED = ("first_exhausted", "all_exhausted")


class Stage(NamedTuple):
    """Sources of a mixture from an epoch on, for `mix(stages=[...])`.

    - `first_epoch`: first epoch of the stage, at least 1, and larger than that of the stage before.
    - `sources`: all sources of the stage by name: a weight for a source that stays or comes back,
      (source, weight) for one that joins, or whose files or operators change.
    - `epoch`: length of its epochs, as for `mix`; `None`: that of the first ones.
    """

    first_epoch: int
    sources: Mapping[str, Weight | tuple[Source, Weight]]
    epoch: Length | None = None


class _StageOf(NamedTuple):
    first_epoch: int
    length: Length
    #: Index of the version of each source, and its weight.
    weights: tuple[tuple[int, str], ...]


@dataclass(frozen=True, repr=False, slots=True)
class Mixture:
    """Sources mixed by weight, returned by `mix`. Read it with `Loader(mixture, batch_size=...)`.

    - `versions`: each source under its name. A name occurs again where a stage replaces its source.
    """

    versions: tuple[tuple[str, Source], ...]
    _stages: tuple[_StageOf, ...]
    #: Names of the columns of batches; `None`: all.
    _columns: tuple[str, ...] | None = None

    def balance(self, by: str | Mapping[str, str], *, window: int = 4096) -> Mixture:
        """Returns a mixture of which samples of similar cost share a step, from whichever source they are.

            mixture = sf.mix({"web": (web, 0.7), "code": (code, 0.3)}, epoch=1_000_000).balance("len(tokens)")

        - `by`, `window`: as for `Source.balance`. Each source keeps its part of each `window` samples of a lane.
          Expressions take the features of a source's records, under the names that they have there. A
          dict has an expression for each source, by name. The costs of all sources are of one type:
          integers or floats.

        Raises `ConfigError` as that does.
        """
        if self._main._balance is not None:
            raise ConfigError(f"balance({by!r}): this mixture is balanced already; give the whole cost in one call")
        if isinstance(by, Mapping) and set(by) != set(self.names):
            given = ", ".join(map(str, by))
            raise ConfigError(f"balance(): a dict names a cost for each source: {', '.join(self.names)}; it names {given}")
        versions = []
        for name, source in self.versions:
            cost = by[name] if isinstance(by, Mapping) else by
            try:
                cost_of, measured = balanced(source, cost, window, is_of_mixture=True)
            except ConfigError as error:
                raise ConfigError(f"balance({cost!r}): source {name!r}: {error}") from None
            versions.append((name, dataclasses.replace(source, _balance=cost_of, _measured=measured)))
        return dataclasses.replace(self, versions=tuple(versions))

    @property
    def names(self) -> list[str]:
        """Names of the sources, in the order of their bytes: `batch.source` is an index into it."""
        return sorted({name for name, _ in self.versions}, key=str.encode)

    @property
    def columns(self) -> dict[str, ColumnSpec]:
        """Name, dtype and shape of each column, as `Source.columns`."""
        columns = self._main.columns
        return {name: columns[name] for name in self._columns or columns}

    @property
    def _main(self) -> Source:
        """The source whose features and operators identify the job: the first one of the first stage, by name."""
        first = (self.versions[version] for version, _ in self._stages[0].weights)
        return min(first, key=lambda named: named[0].encode())[1]

    def _options(self, records: Callable[[Source], Any]) -> dict[str, Any]:
        """Returns the mixture for the native loader.

        - `records`: returns the declaration of a source's records.
        """
        sources = [
            (name, one.dataset, list(one.files), one.index, one.compression, records(one)) for name, one in self.versions
        ]
        return {"sources": sources, "stages": [tuple(stage) for stage in self._stages]}

    def __repr__(self) -> str:
        lines = []
        for stage in self._stages:
            of = ", ".join(f"{self.versions[index][0]} {weight}" for index, weight in stage.weights)
            lines.append(f"\n    from epoch {stage.first_epoch}, {stage.length}: {of}")
        columns = "" if self._columns is None else f", columns {', '.join(self._columns)}"
        costs = dict.fromkeys(shown_balance(source._balance) for _, source in self.versions)
        return f"Mixture({', '.join(self.names)}){''.join(lines)}{columns}{''.join(costs)}"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raises `AttributeError`, which says where a method of a source or of tf.data belongs."""
            if name == "count":
                raise AttributeError(
                    "Mixture has no count(): a loader of it has the samples of an epoch, loader.samples, and the steps, "
                    "len(loader); source.count() counts those of a source"
                )
            if callable(getattr(Source, name, None)):
                raise AttributeError(f"Mixture has no {name}(): call {name}() on each source, before sf.mix()")
            raise AttributeError(no_method(name, [each for each in dir(Mixture) if not each.startswith("_")], "Mixture"))


@suggesting
def mix(
    sources: Mapping[str, tuple[Source, Weight]],
    *,
    epoch: Length,
    stages: Sequence[Stage] | None = None,
    columns: Sequence[str] | None = None,
) -> Mixture:
    """Returns a mixture of sources: of each 1,024 samples of a lane, each source has its weight's part.

        mixture = sf.mix({"web": (web, 0.7), "code": (code, 0.3)}, epoch=1_000_000)
        for batch in sf.Loader(mixture, batch_size=256):
            batch.source  # int32 [256]: 0 is "code", 1 is "web"

    An epoch of the mixture has a fixed number of samples of each source: its weight's part of the
    length, exactly. A small source is repeated, a large one continues in the next epoch. Each pass
    over a source delivers every sample once, in another order. The order depends on names, weights
    and record counts, not on the number of ranks; a state is as small as without a mixture.
    docs/ORDER.md, section 13, defines the order.

    - `sources`: name to source and weight, at most 1,024 sources. Weights are positive decimals of at
      most 40 characters; only their ratios matter. All sources have the same columns, of the same dtypes
      and shapes; features, operators and samples may differ:
      `rename`, `concat`, `constant`, `cast`, `resize` and `pad` make columns alike. Names have 1 to 128
      bytes (UTF-8) without white space and control characters, and are not "-".
    - `epoch`: samples of a mixture epoch; or "first_exhausted": one pass over the source that ends
      first, and the others in proportion; or "all_exhausted": over the one that ends last.
    - `stages`: changes, each a `Stage(first_epoch, sources, epoch=None)` with all sources of the
      epochs from there on: weights, or (source, weight) for a source that joins, or whose files or
      operators change. A source that stays continues where it was; one with other record counts
      starts a new pass, and the rest of its last one is dropped. A state is valid if the stages that
      had begun are the same, so a stage can be added for a later epoch. At most 63 stages. In a cluster
      a mixture has at most 1,024 versions of sources, and at most 4,096 entries: its versions and the
      sources of each stage.
    - `columns`: names of the columns of batches, where sources have further ones; `None`: all, and
      all sources have the same.

    Works with mode="deterministic", in one process and with `coordinator=`, where each source is a
    dataset that the workers scan, and may be one added by name.

    Raises `ConfigError` for weights, names and stages that are invalid, and for sources with other
    columns. The loader raises it if a source has no samples, or too small a weight for one.
    """
    names = None if columns is None else _names(columns)
    versions: list[tuple[str, Source]] = []
    compared: list[tuple[str, Source]] = []
    latest: dict[str, int] = {}
    made = []
    for first_epoch, given, length in [Stage(0, sources, epoch), *map(_stage, stages or ())]:
        if not isinstance(given, Mapping) or not given:
            raise ConfigError(f"sources of a mixture are a dict of names, not {given!r:.60}")
        weights = []
        for name, value in given.items():
            if not isinstance(name, str):
                raise ConfigError(f"the name of a source is a str, not {name!r}")
            if not name.isprintable():
                raise ConfigError(f"the name of a source is printable, not {name!r}")
            weight: Any = value
            if isinstance(value, tuple) and len(value) == 2:
                source, weight = value
                _check_source(name, source)
                _check_alike(compared, (first_epoch, name, source), names)
                known = [at for at, (of, one) in enumerate(versions) if of == name and _reads(one) == _reads(source)]
                latest[name] = known[0] if known else len(versions)
                if not known:
                    versions.append((name, source))
            elif name not in latest:
                raise ConfigError(f"source {name!r} of the mixture is (source, weight), not {value!r:.60}")
            weights.append((latest[name], _weight(name, weight)))
        made.append(_StageOf(first_epoch, _length(epoch if length is None else length), tuple(weights)))
    mixture = Mixture(tuple(versions), tuple(made), names)
    named = [(stage.first_epoch, stage.length, [(versions[at][0], weight) for at, weight in stage.weights]) for stage in made]
    _native.check_mixture(named)
    return mixture


def record_options(source: Source, outputs: list[str] | None = None, *, on_device: bool = False) -> dict[str, Any]:
    """Returns the declaration of a source's records for the native loader.

    - `on_device`: True if a GPU runs the operators after the first for a GPU.
    """
    return {
        "features": to_native(source._features),
        "sequence_features": to_native(source._sequence_features),
        "operators": operators_to_native(source._operators if on_device else _all_operators(source)),
        "outputs": outputs,
        "filter": source._filter,
        "measured": operators_to_native(tuple(source._operators[at] for at in source._measured)),
        "unbatch": source._unbatch,
        "filter_rows": source._filter_rows,
        "pack": source._pack,
        "window": source._window,
        "balance": source._balance,
    }


def declared(
    files: Source | Mixture, outputs: list[str] | None = None, *, on_device: bool = False, in_cluster: bool = False
) -> dict[str, Any]:
    """Returns the declaration of a loader's records, and of its mixture, for the native loader.

    - `outputs`, `on_device`: as for `record_options`. `in_cluster`: True if other hosts count samples.

    Raises `ConfigError` if a GPU should run other operators for some sources of a mixture, or a host would need a table.
    """
    for one in [files] if isinstance(files, Source) else [one for _, one in files.versions]:
        if in_cluster and one._tables(one._measured):
            raise ConfigError(
                "a filter or cost takes a column of lookup(), and in a cluster workers without the table count samples; leave "
                "coordinator= out, or write the column into the records"
            )
    if isinstance(files, Source):
        return {"mixture": None, **record_options(files, outputs, on_device=on_device)}
    main = files._main
    if outputs is None and files._columns is not None:
        outputs = list(files._columns)
    if on_device:
        for name, one in files.versions:
            if operators_to_native(one._device_operators or ()) != operators_to_native(main._device_operators or ()):
                raise ConfigError(
                    f"source {name!r} has other operators for the GPU than other sources; the GPU runs the same ones "
                    f"for all rows of a batch: give all sources the same operators after on_device(), or leave device= of "
                    f"the loader out"
                )
    mixture = files._options(lambda one: record_options(one, outputs, on_device=on_device))
    # Filters belong to the sources.
    return {"mixture": mixture, **record_options(main, outputs, on_device=on_device), "filter": None}


def counts_without_index(files: Source | Mixture) -> bool:
    """Returns whether samples of a source without an `index` have to be counted."""
    sources = [files] if isinstance(files, Source) else [one for _, one in files.versions]
    return any(one.index is None and (_makes_samples(one) or one._balance is not None) for one in sources)


def weights_by_size(
    sizes: Mapping[str, int | Source], *, temperature: float = 1.0, maximum: int | None = None
) -> dict[str, float]:
    """Returns weights for `mix` from the sizes of sources: min(size, maximum) ** (1 / temperature),
    as SeqIO's `mixing_rate_num_examples`.

    - `sizes`: name to number of samples, or to a source whose samples are known: `count()` was called
      on it, or its `records` are known and each is a sample.
    - `temperature`: 1: in proportion to the sizes; larger: closer to equal weights.
    - `maximum`: sizes above it count as it.

    Raises `ConfigError` for a source whose samples are not known.
    """
    if isinstance(temperature, bool) or not isinstance(temperature, float | int) or not 0 < temperature < 1e6:
        raise ConfigError(f"temperature must be a number above 0, not {temperature!r}")
    most = None if maximum is None else whole_number("maximum", maximum, 1)
    weights = {}
    for name, size in sizes.items():
        count = whole_number(f"the size of {name!r}", _samples(name, size) if isinstance(size, Source) else size, 1)
        try:
            weights[name] = float(min(count, most or count)) ** (1 / temperature)
        except OverflowError:
            raise ConfigError(f"temperature={temperature} makes the weight of {name!r} too large; use one nearer to 1") from None
    return weights


def _samples(name: str, source: Source) -> int:
    """Returns the samples of a source, if they are known."""
    if source._counted is not None:
        return source._counted
    if source.records is None or _makes_samples(source):
        what = "records= is not given" if source.records is None else "records= counts records, of which its methods make samples"
        raise ConfigError(
            f"the number of samples of source {name!r} is not known: {what}; call count() on this source before, or pass the "
            f"number"
        )
    return source.records


def _makes_samples(source: Source) -> bool:
    return any(one is not None for one in (source._filter, source._unbatch, source._pack, source._window))


def _stage(stage: Any) -> Stage:
    if not isinstance(stage, Stage):
        raise ConfigError(f"a stage is sf.Stage(first_epoch, sources, epoch=None), not {stage!r:.60}")
    return stage._replace(first_epoch=whole_number("the first epoch of a stage", stage.first_epoch, 0))


def _length(length: Any) -> Length:
    if isinstance(length, str):
        if length not in _EXHAUSTED:
            raise ConfigError(f'epoch={length!r} is neither "first_exhausted" nor "all_exhausted" nor a number')
        return length  # type: ignore[return-value]
    return whole_number("epoch", length, 1, 2**63)


def _weight(name: str, weight: Any) -> str:
    if isinstance(weight, np.integer):
        return str(int(weight))
    if isinstance(weight, bool) or not isinstance(weight, float | int | str | Decimal):
        raise ConfigError(f"the weight of source {name!r} is a number, or a decimal as text, not {weight!r:.60}")
    # Also a numpy.float64, whose repr is no decimal.
    return repr(float(weight)) if isinstance(weight, float) else str(weight)


def _check_source(name: str, source: Any) -> None:
    if isinstance(source, Mixture):
        raise ConfigError(f"source {name!r} is a mixture; mix its sources with their products of weights instead")
    if isinstance(source, Source) and source._balance is not None:
        raise ConfigError(f"source {name!r} is balanced; the steps are those of the mixture: call balance() on it instead")
    if not isinstance(source, Source):
        raise ConfigError(f"source {name!r} is a Source, such as sf.source(files, features), not {source!r:.60}")


def _names(columns: Sequence[str]) -> tuple[str, ...]:
    names = () if isinstance(columns, str) else tuple(columns)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"columns is a list of names, each once, not {columns!r:.60}")
    return names


def _check_alike(
    known: list[tuple[str, Source]], given: tuple[int, str, Source], names: tuple[str, ...] | None
) -> None:
    """Rejects a source with other columns than the first one.

    - `known`: the first source, which this adds. `given`: first epoch of the stage, and source.
    """
    epoch, name, source = given
    missing = [column for column in names or () if column not in source.columns]
    if missing:
        raise ConfigError(f"columns: there is no {missing[0]!r} in source {name!r}, which has {', '.join(source.columns)}")
    if not known:
        known.append((name, source))
    for first_name, first in known:
        ours, theirs = first.columns, source.columns
        for column in names or [*ours, *theirs]:
            if ours.get(column) != theirs.get(column):
                here, there = (str(columns.get(column, "missing")) for columns in (ours, theirs))
                stage = f" of the stage from epoch {epoch}" if epoch else ""
                raise ConfigError(
                    f"column {column!r} is {here} in source {first_name!r} and {there} in source {name!r}{stage}; all sources "
                    f"of a mixture have the same columns: rename, concat, constant, cast, reshape and pad make them so, and "
                    f"columns= of mix() leaves out columns"
                )


def _all_operators(source: Source) -> tuple[Operator, ...]:
    return (*source._operators, *(source._device_operators or ()))


def _program(source: Source) -> str:
    """Returns the features and operators as a text, which compares also with NaN and arrays as defaults."""
    operators = operators_to_native(_all_operators(source))
    features = to_native(source._features), to_native(source._sequence_features)
    return repr((features, source._unbatch, source._filter_rows, source._pack, source._window, operators))


def _reads(source: Source) -> Any:
    """Returns everything that determines the samples of a source."""
    return source.dataset, source.files, source.compression, source.records, source._filter, source._measured, _program(source)
