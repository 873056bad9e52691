"""Packs of docs/SAMPLES.md beside those of Grain and of a packer in Python, of the same documents."""

from __future__ import annotations

from bisect import bisect_left, insort
from pathlib import Path
from typing import Any

import grain
import numpy as np
from documents import documents

import shardfeed as sf

LENGTH = 1024
FEATURES: dict[str, Any] = {"tokens": sf.VarLenFeature("int64"), "place": sf.VarLenFeature("int64")}

Tokens = np.ndarray[Any, np.dtype[np.int64]]


def parts(texts: list[Tokens]) -> list[Tokens]:
    """Cuts long documents as `long="split"` does; Grain refuses them."""
    return [text[at : at + LENGTH] for text in texts for at in range(0, len(text), LENGTH)]


def best_fit(texts: list[Tokens]) -> int:
    """Counts packs where each part, in turn, is put into the fullest one of all that has room for it."""
    rooms: list[int] = []
    for part in parts(texts):
        at = bisect_left(rooms, len(part))
        insort(rooms, (rooms.pop(at) if at < len(rooms) else LENGTH) - len(part))
    return len(rooms)


def packs_of_grain(texts: list[Tokens], bins: int, *, shuffled: bool) -> int:
    """Counts packs of Grain's best fit into a number of open ones."""
    data = grain.MapDataset.source(parts(texts))
    data = data.shuffle(seed=0) if shuffled else data
    data = data.map(lambda tokens: {"tokens": tokens}).to_iter_dataset(grain.ReadOptions(num_threads=0))
    packs = grain.experimental.BestFitPackIterDataset(data, length_struct={"tokens": LENGTH}, num_packing_bins=bins)
    tokens = [np.count_nonzero(pack["tokens_segment_ids"]) for pack in packs]
    assert sum(tokens) == sum(map(len, texts))
    return len(tokens)


def test_packs_have_each_token_once_and_no_more_padding_than_best_fit(tmp_path: Path) -> None:
    # Bytes as tokens from 1 on. The place of a token is its index in all texts with a 0 after each.
    texts = [np.frombuffer(text, np.uint8).astype(np.int64) + 1 for text in documents()]
    whole = np.concatenate([np.append(text, 0) for text in texts])
    starts = np.cumsum([0, *(len(text) + 1 for text in texts)])
    # With few open packs, as it is used, and with room for all packs.
    fewest = min(best_fit(texts), packs_of_grain(texts, 64, shuffled=True), packs_of_grain(texts, 8192, shuffled=False))
    for shards in (1, 4):
        (tmp_path / str(shards)).mkdir()
        for shard in range(shards):
            with sf.TFRecordWriter(tmp_path / f"{shards}/{shard}.tfrecord") as writer:
                for at in range(shard, len(texts), shards):
                    writer.write({"tokens": texts[at], "place": np.arange(starts[at], starts[at + 1] - 1)})
        packs = sf.source(str(tmp_path / f"{shards}/*.tfrecord"), FEATURES).pack("tokens", "place", length=LENGTH)
        with sf.Loader(packs, batch_size=16, tail="pad") as loader:
            assert loader.samples <= fewest
            for _ in range(2):
                places = []
                for batch in loader:
                    tokens, place, segments = (batch[name][batch.valid] for name in ("tokens", "place", "tokens_segment_ids"))
                    is_token = segments > 0
                    assert np.array_equal(tokens, np.where(is_token, whole[place], 0))
                    # A segment is a part of one document: no token has the place between two.
                    is_next = is_token[:, 1:] & (np.diff(segments) == 0)
                    assert (np.diff(place)[is_next] == 1).all()
                    places.append(place[is_token])
                assert np.array_equal(np.bincount(np.concatenate(places), minlength=len(whole)), whole > 0)
