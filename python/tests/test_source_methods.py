"""Sources: their methods, the checks when a method is called, and names of tf.data."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FEATURES, Dataset, ids

import shardfeed as sf

PAGE = Path(__file__).resolve().parents[2] / "docs/OPERATORS.md"

DECLARED: dict[str, Any] = {
    "photo": sf.FixedLenFeature((), "string"),
    "label": sf.FixedLenFeature((), "int64"),
    "board": sf.FixedLenFeature((2, 3), "float32"),
    "any": sf.VarLenFeature("int64"),
    "deep": sf.RaggedFeature("float32", "v", [sf.RaggedFeature.RowLengths("n"), sf.RaggedFeature.UniformRowLength(2)]),
    "padded": sf.FixedLenSequenceFeature((4,), "int64", allow_missing=True),
    "sparse": sf.SparseFeature(["i", "j"], "w", "float32", [7, 9]),
}


@pytest.fixture
def source() -> sf.Source:
    return sf.source("none-*.tfrecord", DECLARED)


def test_every_operator_of_the_page_is_a_method_with_its_arguments() -> None:
    rows = re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 25
    for name, arguments in rows:
        found = inspect.signature(getattr(sf.Source, name)).parameters
        named = [each.name for each in found.values() if each.name != "output" or each.default is each.empty]
        assert named == ["self", *arguments.split(", ")]
        assert inspect.getdoc(getattr(sf.Source, name)), name


def test_columns_have_kind_type_and_shape(source: sf.Source) -> None:
    assert source.columns == {
        "any": ("ragged", "int64", (None,)),
        "board": ("dense", "float32", (2, 3)),
        "deep": ("ragged", "float32", (None, None, 2)),
        "label": ("dense", "int64", ()),
        "padded": ("padded", "int64", (None, 4)),
        "photo": ("dense", "string", ()),
        "sparse": ("sparse", "float32", (7, 9)),
    }
    made = source.decode_image("photo", 1, dtype="uint16").one_hot("label", 5, output="hot").padded_batch("any", 6)
    changed = {"photo": ("images", "uint16", (None, None, 1)), "hot": ("dense", "float32", (5,)), "any": ("dense", "int64", (6,))}
    assert made.columns == source.columns | changed
    # As in a batch: parsed columns by name, then those of operators.
    assert list(made.columns) == [*source.columns, "hot"]
    assert repr(made.resize("photo", (4, 5))) == (
        "Source('none-*.tfrecord')\n    any: int64 [6]\n    board: float32 [2, 3]\n    deep: float32 [None, None, 2] ragged\n"
        "    label: int64 []\n    padded: int64 [None, 4] padded\n    photo: uint16 [4, 5, 1]\n    sparse: float32 [7, 9] sparse\n"
        "    hot: float32 [5]"
    )
    assert repr(sf.source(["a", "b"], records=3)) == "Source('a' and 1 more, 3 records)\n    record: string []"
    wide = sf.source("a", {f"{number:02}": sf.FixedLenFeature((), "int64") for number in range(25)})
    assert repr(wide).endswith("\n    19: int64 []\n    and 5 more")


def test_columns_are_those_of_the_batches(dataset: Dataset) -> None:
    source = sf.source(dataset.pattern, FEATURES | {"list": sf.VarLenFeature("int64"), "name": sf.FixedLenFeature((), "string")})
    source = source.transpose("image", (1, 0), output="turned").cast("id", "int16")
    with sf.Loader(source, batch_size=4) as loader:
        batch = next(iter(loader))
    assert list(batch) == list(source.columns)
    for name, (kind, dtype, shape) in source.columns.items():
        if dtype != "string" and kind == "dense":
            assert (batch[name].dtype, batch[name].shape) == (np.dtype(dtype), (4, *shape))


def test_a_source_never_changes(source: sf.Source) -> None:
    before = repr(source)
    one, other = source.cast("label", "int32"), source.cast("label", "float32")
    assert repr(source) == before and source.columns["label"].dtype == "int64"
    assert (one.columns["label"].dtype, other.columns["label"].dtype) == ("int32", "float32")
    assert one != other != source and one == source.cast("label", "int32")
    for name in ("files", "records", "columns", "new"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(source, name, None)
    features: Any = source.features
    with pytest.raises(TypeError):
        features["label"] = sf.VarLenFeature("int64")
    given = dict(DECLARED)
    declared = sf.source("none", given)
    given["later"] = sf.VarLenFeature("int64")
    assert "later" not in declared.columns and declared.features == DECLARED


LABEL = "'label' is int64 []"
THERE = "he columns are 'any' int64 [None] ragged, 'board' float32 [2, 3], "


@pytest.mark.parametrize(
    ("call", "said"),
    [
        # Columns that do not exist.
        (lambda s: s.cast("lable", "int32"), f"cast('lable'): there is no column 'lable'; did you mean 'label'? T{THERE}"),
        (lambda s: s.resize("qqq", 3), f"resize('qqq'): there is no column 'qqq'; t{THERE}"),
        (lambda s: s.cast("label", "int32").cast("nothing", "int32"), "'label' int32 [], "),
        (lambda s: s.decode_raw("photo", "uint8", ("hight", 3, 3)), "decode_raw('photo'): there is no column 'hight'"),
        (lambda s: s.reshape("board", ("labels", 3, 3)), "there is no column 'labels'; did you mean 'label'?"),
        (lambda s: s.compute("y", "label + bord"), "compute('y'): there is no column 'bord'; did you mean 'board'?"),
        # Types and shapes that do not fit.
        (lambda s: s.decode_raw("label", "uint8", 8), f"decode_raw('label'): it takes byte strings, not int64 of shape []; {LABEL}"),
        (lambda s: s.cast("photo", "int32"), "cast('photo'): it takes numbers, but its input is byte strings of shape []; decode them first; 'photo' is string []"),
        (lambda s: s.decode_image("any"), "decode_image('any'): it takes one byte string a row, not int64 of shape []; 'any' is int64 [None] ragged"),
        (lambda s: s.cast("padded", "int32"), "'padded' is int64 [None, 4] padded"),
        (lambda s: s.reshape("board", (4, 2)), "reshape('board'): "),
        (lambda s: s.unpack_bits("board"), "unpack_bits('board'): it takes uint8"),
        (lambda s: s.scale("board", [1, 2]), "scale has 2 values"),
        (lambda s: s.scale("board", []), "scale has 0 values"),
        (lambda s: s.normalize("label", 0, 1e-50), f"which is 0 as float32: nothing is divided by it; {LABEL}"),
        (lambda s: s.transpose("board", (0, 0)), "transpose('board'): "),
        (lambda s: s.slice("board", (0,), (1,)), "slice('board'): "),
        (lambda s: s.select("board", [3]), "select('board'): "),
        (lambda s: s.one_hot("board", 3), "one_hot('board'): it takes integers, not float32; cast them"),
        (lambda s: s.padded_batch("label", 3), f"padded_batch('label'): it takes columns of any number of values: a VarLenFeature; {LABEL}"),
        (lambda s: s.padded_batch("any", 3).padded_batch("any", 3), "'any' is int64 [3]"),
        (lambda s: s.decode_image("label"), "decode_image('label'): it takes one byte string a row"),
        (lambda s: s.decode_image("photo", 2), "channels is 1, 3 or 4, not 2"),
        (lambda s: s.crop("board", 2), "crop('board'): it takes images, [height, width, channels], or some in each row"),
        (lambda s: s.decode_image("photo").cast("photo", "int8"), "the images of `photo` differ in size from row to row; resize or crop them first; 'photo' is uint8 [None, None, 3] images"),
        (lambda s: s.random_crop("label", 2), "random_crop('label'): "),
        (lambda s: s.random_resized_crop("label"), "random_resized_crop('label'): "),
        (lambda s: s.resize("label", 2), "resize('label'): "),
        (lambda s: s.flip("label"), "flip('label'): "),
        (lambda s: s.layout("board"), "layout('board'): it takes images of three dimensions"),
        (lambda s: s.compute("y", "board + 1"), "one number a row, not of shape [2, 3]; select or reshape them; the columns are"),
        (lambda s: s.compute("y", "label +"), "compute('y'): "),
        (lambda s: s.compute("y", "0 < label < 3"), "compares twice in a row"),
        # Arguments.
        (lambda s: s.cast("label", "complex64"), "cast('label'): dtype 'complex64' is none of bool"),
        (lambda s: s.cast("label", None), "none of bool"),
        (lambda s: s.cast(3, "int32"), "cast(3): a column's name is a str, not 3"),
        (lambda s: s.normalize("label", 0, float("nan")), "normalize('label'): std has nan, which is not finite"),
        (lambda s: s.reshape("label", [1.5]), "whole numbers"),
        (lambda s: s.reshape("label", "hwc"), "whole numbers and names"),
        (lambda s: s.slice("label", [-1], [1]), "0 or more"),
        (lambda s: s.crop("photo", (1, 2, 3)), "crop('photo'): size is (height, width), not (1, 2, 3)"),
        (lambda s: s.resize("photo", 3, method="cubic"), "method is \"nearest\", \"bilinear\" or \"bicubic\", not 'cubic'"),
        (lambda s: s.flip("photo", "left"), "axis is \"horizontal\" or \"vertical\", not 'left'"),
        (lambda s: s.layout("board", "nhwc"), "layout is \"chw\" or \"hwc\""),
        (lambda s: s.unpack_bits("board", bit_order="msb"), "bit_order is \"big\" or \"little\""),
        (lambda s: s.random_resized_crop("photo", (1.0,)), "scale is two numbers, from and to"),
        (lambda s: s.compute("y", 3), "expression is a str, not 3"),
        (lambda s: s.decode_raw("photo", "uint8", 8, little_endian="no"), "decode_raw('photo'): little_endian must be True or False, not 'no'"),
        (lambda s: s.padded_batch("any", 3, truncate=1), "padded_batch('any'): truncate must be True or False, not 1"),
        (lambda s: s.pad("any", 3, truncate=None), "pad('any'): truncate must be True or False, not None"),
        (lambda s: s.resize("photo", 3, antialias="bilinear"), "resize('photo'): antialias must be True or False, not 'bilinear'"),
        (lambda s: s.crop("photo", box="board", normalized="no"), "crop('photo'): normalized must be True or False, not 'no'"),
        (lambda s: s.crop("photo", 3, normalized=0), "crop('photo'): normalized must be True or False, not 0"),
        (lambda s: s.parse(DECLARED), "parse() is for raw records"),
    ],
)  # fmt: skip
def test_a_method_checks_at_once(source: sf.Source, call: Any, said: str) -> None:
    with pytest.raises(sf.ConfigError) as raised:
        call(source)
    assert said in str(raised.value)


def test_flags_may_be_of_numpy(source: sf.Source) -> None:
    for given in (True, False):
        same = np.bool_(given)
        assert source.padded_batch("any", 3, truncate=same) == source.padded_batch("any", 3, truncate=given)
        image = source.decode_image("photo")
        assert image.resize("photo", 3, antialias=same) == image.resize("photo", 3, antialias=given)


def test_features_and_arguments_of_a_source_are_checked_at_once() -> None:
    for make, said in [
        (lambda: sf.source(), "pass files, or dataset="),
        (lambda: sf.source("x", dataset="y"), "pass files, or dataset="),
        (lambda: sf.source("x", compression="brotli"), "compression='brotli' is none of"),
        (lambda: sf.source("x", records=-1), "records must be at least 0"),
        (lambda: sf.source("x", {}), "features is empty"),
        (lambda: sf.source("x", {"a": 3}), "feature 'a' must be a FixedLenFeature"),
        (lambda: sf.source("x", {"a": sf.FixedLenSequenceFeature((), "int64")}), "allow_missing"),
        (lambda: sf.source("x", {"a": DECLARED["label"]}, sequence_features={"a": DECLARED["any"]}), "`?a`?"),
    ]:
        with pytest.raises(sf.ConfigError, match=said):
            make()
    with pytest.raises(TypeError, match=r"source\(\) has no option 'feature'; did you mean features\?"):
        sf.source("x", feature=None)  # type: ignore[call-arg]


def test_what_belongs_to_the_source_is_not_an_option_of_its_loader(source: sf.Source) -> None:
    for option in ({"features": FEATURES}, {"sequence_features": {}}, {"dataset": "x"}, {"compression": "gzip"}):
        (name,) = option
        with pytest.raises(sf.ConfigError, match=rf"{name}= belongs to the source: pass it to sf.source\(files, {name}="):
            sf.Loader(source, batch_size=1, **option)
    for name, said in (("operators", "are methods of the source"), ("device_operators", r"after on_device\(\)")):
        with pytest.raises(TypeError, match=rf"Loader\(\) has no option '{name}'; .*{said}"):
            sf.Loader("x", batch_size=1, **{name: []})
    with pytest.raises(TypeError, match=r"Source.resize\(\) has no option 'sizes'; did you mean size\?"):
        source.resize("photo", sizes=3)  # type: ignore[call-arg]


#: Names of tf.data, and what their errors say.
ELSEWHERE = {
    "map": "methods of a source", "shuffle": "shuffle_window=", "batch": "batch_size=", "repeat": "loader.epochs(n)",
    "prefetch": "prefetch=", "take": "limit=", "skip": "resume=", "shard": "world_size=", "interleave": "block_length=",
    "cache": "cache_bytes=", "concatenate": "sf.source([*files, *more])", "zip": "source.lookup(",
    "cardinality": "source.count()", "reduce": "batches of a loader", "snapshot": "sf.write_dataset(",
    "with_options": "options of Loader(", "as_numpy_iterator": "numpy arrays", "unique": "sf.write_dataset",
    "rebatch": "batch_size=", "scan": "loop over the batches", "ragged_batch": "VarLenFeature",
}  # fmt: skip


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_method_of_tf_data_names_the_equivalent(source: sf.Source, name: str) -> None:
    assert not hasattr(source, name)
    with pytest.raises(AttributeError) as raised:
        getattr(source, name)(3)
    said = str(raised.value)
    assert said.startswith(f"Source has no {name}(): ") and ELSEWHERE[name] in said
    # Named options and methods exist.
    options = set(inspect.signature(sf.Loader).parameters)
    assert set(re.findall(r"\b(\w+)=", said)) <= options, said
    for method in re.findall(r"source\.(\w+)\(", said.replace("sf.source(", "")):
        assert hasattr(sf.Source, method), said


def test_errors_of_each_method_name_the_source(source: sf.Source) -> None:
    for name in ("filter", "unbatch", "pack", "window", "balance", "resize"):
        with pytest.raises(TypeError, match=rf"^Source.{name}\(\) has no option 'named'"):
            getattr(source, name)("any", named=3)
    with pytest.raises(TypeError, match=r"^Source.pack\(\) missing 1 required keyword-only argument: 'length'"):
        source.pack("any")  # type: ignore[call-arg]


def test_a_source_has_no_length_and_names_those_that_exist(source: sf.Source) -> None:
    with pytest.raises(TypeError, match=r"a source has no len\(\): source.count\(\) is the number of its samples, len\(loader\)"):
        len(source)  # type: ignore[arg-type]
    assert source


def test_other_names_suggest_a_method(source: sf.Source) -> None:
    with pytest.raises(AttributeError, match="Source has no attribute 'resise'; did you mean resize?"):
        source.resise  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="Source has no attribute '_private'$"):
        source._private  # type: ignore[attr-defined]


def test_the_shorthand_is_the_source_of_its_files(dataset: Dataset) -> None:
    source = sf.source(dataset.pattern, FEATURES)
    with sf.Loader(dataset.pattern, FEATURES, batch_size=4) as short, sf.Loader(source, batch_size=4) as whole:
        assert short.plan_digest == whole.plan_digest
        assert [ids(batch) for batch in short] == [ids(batch) for batch in whole]


def test_sources_of_each_origin_have_methods(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.uint8).reshape(6, 2)
    arrays = sf.from_arrays({"x": values, "at": np.arange(6)}, tmp_path / "arrays")
    assert arrays.columns == {"at": ("dense", "int64", ()), "x": ("dense", "uint8", (2,))}
    rows = ({"x": row, "at": at} for at, row in enumerate(values))
    generated = sf.from_generator(lambda: rows, tmp_path / "generated")
    stored = {"x": sf.FixedLenFeature((), "string"), "at": sf.FixedLenFeature((), "int64")}
    records = ({"x": row.tobytes(), "at": at} for at, row in enumerate(values))
    written = sf.write_dataset(records, tmp_path / "written").parse(stored).decode_raw("x", "uint8", 2)
    copied = sf.open_source(tmp_path / "arrays").with_files(generated.files, records=6)
    by_name = sf.source(arrays.files, stored).decode_raw("x", "uint8", 2)
    for source in (arrays, generated, sf.open_source(tmp_path / "arrays"), written, copied, by_name):
        with sf.Loader(source.scale("x", 2.0, output="y"), batch_size=6) as loader:
            (batch,) = loader
        assert np.array_equal(batch["y"], values[batch["at"]] * 2.0)
    with pytest.raises(sf.ShardChangedError, match="the files hold 6 records, but 7 were written"):
        sf.Loader(arrays.with_files(generated.files, records=7), batch_size=6)


def test_a_prepared_dataset_of_tfds_is_a_source_with_methods(tmp_path: Path) -> None:
    """As TFDS writes it; `frameworks/test_tfds.py` compares all kinds of columns with TFDS itself."""
    tensor = {"pythonClassName": "tfds.Tensor", "tensor": {"shape": {"dimensions": ["2"]}, "dtype": "uint8", "encoding": "none"}}
    stored = {"pythonClassName": "tfds.Tensor", "tensor": tensor["tensor"] | {"encoding": "bytes"}}
    described = {"featuresDict": {"features": {"x": tensor, "raw": stored, "at": {"pythonClassName": "tfds.ClassLabel"}}}}
    (tmp_path / "features.json").write_text(json.dumps(described))
    info = {"name": "few", "splits": [{"name": "train", "shardLengths": ["6"]}]}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    with sf.TFRecordWriter(tmp_path / "few-train.tfrecord-00000-of-00001") as writer:
        for at in range(6):
            writer.write({"x": [at, 7], "raw": bytes([at, 9]), "at": at})
    source = sf.from_tfds(tmp_path)
    assert source.records == 6
    assert source.columns == {
        "at": ("dense", "int64", ()), "raw": ("dense", "uint8", (2,)), "x": ("dense", "uint8", (2,))
    }  # fmt: skip
    with sf.Loader(source.select("raw", [0], output="first"), batch_size=6) as loader:
        (batch,) = loader
    assert np.array_equal(batch["first"][:, 0], batch["at"]) and np.array_equal(batch["x"][:, 0], batch["at"])


def test_operators_after_on_device_are_kept_apart(source: sf.Source) -> None:
    there = source.cast("label", "int32").on_device().cast("board", "float16")
    assert there.on_device() is there
    assert there.columns["board"] == ("dense", "float16", (2, 3))
    assert there != source.cast("label", "int32").cast("board", "float16")
    with pytest.raises(sf.ConfigError, match=r"select\('board'\): a device casts, .*; call others before on_device\(\)"):
        there.select("board", [0])
