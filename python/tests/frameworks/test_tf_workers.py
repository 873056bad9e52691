"""Two processes of MultiWorkerMirroredStrategy, each with its TF_CONFIG: every record goes to one
of them, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import mixed
import pytest
from trainings import free_address

#: Prints the ids of each element that it gets from TensorFlow, after a step of all workers.
PROCESS = """
import json, os, sys
first, number, second, files, how = sys.argv[1:]
cluster, task = {"worker": [first, second]}, {"type": "worker", "index": int(number)}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import mixed
loader = mixed.loader(files, outputs=["id", "image"], tail="pad")
assert (loader.rank, loader.world_size) == (int(number), 2)
dataset = loader.as_tf_dataset(valid="valid")
if how == "a dataset":
    dealt = strategy.experimental_distribute_dataset(dataset)
else:
    dealt = strategy.distribute_datasets_from_function(lambda context: dataset)

@tf.function
def step(element):
    return strategy.reduce("SUM", strategy.run(lambda each: tf.size(each["id"]), (element,)), axis=None)

for epoch in range(2):
    for element in dealt:
        (ids,), (valid,) = (strategy.experimental_local_results(element[name]) for name in ("id", "valid"))
        ids = tf.boolean_mask(ids, valid).numpy().tolist()
        print("got", json.dumps([epoch, ids, int(step(element))]), flush=True)
"""


@pytest.mark.parametrize("dealt", ["a dataset", "of a function"])
def test_each_worker_gets_its_part_and_all_of_it(tmp_path: Path, dealt: str) -> None:
    """AutoShard would omit half of each part."""
    rows = mixed.ROWS + 3
    said = mixed.two_processes(PROCESS, "got", free_address(), mixed.write(tmp_path / "data", rows), dealt)
    for epoch in range(2):
        parts = [Counter(number for at, ids, _ in rank for number in ids if at == epoch) for rank in said]
        assert all(parts) and parts[0] + parts[1] == Counter(range(rows))
    steps = [[rows_of_all for _, _, rows_of_all in rank] for rank in said]
    # For a dataset that represents all workers, TensorFlow makes smaller batches accordingly.
    assert steps[0] == steps[1] and set(steps[0]) == {mixed.BATCH if dealt == "a dataset" else 2 * mixed.BATCH}
