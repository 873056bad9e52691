"""Ranks from jax.distributed, in two processes, also for versions of JAX with other internal
names."""

from __future__ import annotations

import mixed

#: Reports at each stage [rank, world size, source] or the error, and whether JAX's devices are up.
PROCESS = """
import json, sys
import shardfeed as sf
from shardfeed import ranks

def say(stage):
    try:
        found = list(ranks.find(None, None))
    except sf.ConfigError as error:
        found = str(error)
    are_up = "jax" in sys.modules and sys.modules["jax._src.xla_bridge"].backends_are_initialized()
    print("found", json.dumps([stage, found, are_up]), flush=True)

address, number = sys.argv[1], int(sys.argv[2])
say("not imported")
import jax
say("not initialized")
jax.distributed.initialize(address, num_processes=2, process_id=number, initialization_timeout=60)
say("initialized")
private = sys.modules.pop("jax._src.distributed")
say("kept elsewhere")
state = private.global_state
sys.modules["jax._src.distributed"] = private
private.global_state = type("State", (), {"client": state.client})()
say("other names")
is_initialized = jax.distributed.is_initialized
del jax.distributed.is_initialized
say("other names, and nothing public")
private.global_state = state
say("nothing public")
jax.distributed.is_initialized = is_initialized
assert list(ranks.find(5, 7)) == [5, 7, "arguments"]
del sys.modules["jax._src.distributed"]
assert jax.process_count() == 2
say("kept elsewhere, devices up")
sys.modules["jax._src.distributed"] = private
say("devices up")
jax.distributed.shutdown()
say("shut down")
"""


def test_a_number_is_found_or_asked_for_and_never_made_up() -> None:
    for number, said in enumerate(mixed.two_processes(PROCESS, "found")):
        stages = {stage: (found, are_up) for stage, found, are_up in said}
        hidden = {stage: stages.pop(stage)
                  for stage in ("kept elsewhere", "other names", "other names, and nothing public")}  # fmt: skip
        for error, are_up in hidden.values():
            assert error.startswith("jax.distributed is initialized, but JAX ") and not are_up
            assert error.endswith("pass rank=jax.process_index() and world_size=jax.process_count()")
        assert stages == {
            "not imported": ([0, 1, "default"], False),
            "not initialized": ([0, 1, "default"], False),
            "initialized": ([number, 2, "jax.distributed"], False),
            "nothing public": ([number, 2, "jax.distributed"], False),
            "kept elsewhere, devices up": ([number, 2, "jax.process_index()"], True),
            "devices up": ([number, 2, "jax.distributed"], True),
            "shut down": ([0, 1, "default"], True),
        }
