"""Failures in `make gate`, and its use of time (chaos/gate.py)."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "chaos"))

import gate  # noqa: E402

#: Built by `make dev`, like everything that these tests use.
SIMULATION = ROOT / "target/debug/shardfeed-chaos"
BUG = gate.Bug("kind", "some-bug", 3, 0)


def program(folder: Path, script: str) -> Path:
    path = folder / f"program-{len([*folder.iterdir()])}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def with_bugs(simulation: Path) -> gate.Gate:
    """Returns a gate with this build in place of the one with deliberate bugs."""
    made = gate.Gate(0, 0)
    made.patched = simulation
    return made


def test_every_bug_is_tried() -> None:
    bugs = gate.bugs()
    assert len(bugs) == len([*(ROOT / "chaos/bugs").glob("*.diff")])
    first = gate.first_of_each(bugs)
    assert [bug.kind for bug in first] == list(dict.fromkeys(bug.kind for bug in reversed(bugs)))
    assert all(bug == next(other for other in bugs if other.kind == bug.kind) for bug in first)
    # Commented lines are not counted.
    with pytest.raises(gate.Failed, match="differ: two"):
        gate.listed("log one 10 # seldom\n# log two 10", {"one", "two"})
    with pytest.raises(gate.Failed, match="differ: one"):
        gate.listed("log one 10", set())


@pytest.mark.parametrize(
    ("status", "output", "found"),
    [
        (1, "seed 7: I4: twice\nREPRODUCE: x\n", ("7", "I4: twice")),
        (1, "seed 7: S1: a panic in apply", ("7", "S1: a panic in apply")),
        (0, "seed 7: I4: twice", None),
        (1, "error: this build cannot simulate", None),
        (2, "usage: shardfeed-chaos", None),
        (-9, "", None),
        (1, "seed 0: S1: the process ended with exit status: 1", None),
        (1, "seed 0: I16: no end after 180s", None),
        (1, "seed 0: I16: no end after 180s\nREPRODUCE: x\nseed 1: I4: twice\n", ("1", "I4: twice")),
    ],
)
def test_only_a_breach_is_a_find(status: int, output: str, found: tuple[str, str] | None) -> None:
    assert gate.breach_of(status, output) == found


@pytest.mark.skipif(not SIMULATION.exists(), reason="only `make dev` builds the simulation")
def test_a_simulation_that_cannot_run_finds_no_bug(tmp_path: Path) -> None:
    # The real simulation, whose clusters cannot start without descriptors: every seed fails, as
    # with a bug.
    lame = program(tmp_path, f'ulimit -n 6; exec {SIMULATION} "$@"')
    status, output = gate.finished("seed", [lame, "run", "--seeds", "1", "--jobs", "1"])
    assert status == 1
    assert output
    with pytest.raises(gate.Failed, match=r"NOT FOUND|fails without it, too"):
        with_bugs(lame).bug(BUG)


def test_a_bug_is_found_by_what_a_clean_run_does_not_have(tmp_path: Path) -> None:
    breach = "echo 'seed 2: I4: twice'; exit 1"
    clean = "echo 'ok: 1 runs in 0.1 s'"
    found = with_bugs(program(tmp_path, f'test "$SHARDFEED_BUG" = some-bug || {{ {clean}; exit 0; }}; {breach}'))
    found.bug(BUG)
    assert found.ran["bugs"] == 1
    with pytest.raises(gate.Failed, match="fails without it, too"):
        with_bugs(program(tmp_path, breach)).bug(BUG)
    with pytest.raises(gate.Failed, match="NOT FOUND"):
        with_bugs(program(tmp_path, clean)).bug(BUG)
    # Neither found nor clean: it ran nothing.
    with pytest.raises(gate.Failed, match="fails without it, too"):
        with_bugs(program(tmp_path, f'test -n "$SHARDFEED_BUG" || exit 0; {breach}')).bug(BUG)
    with pytest.raises(gate.Failed, match="cannot start"):
        with_bugs(tmp_path / "missing").bug(BUG)


def test_a_command_that_runs_less_than_asked_for_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "SIMULATION", program(tmp_path, "echo 'ok: 10 runs in 1.0 s'"))
    made = gate.Gate(0, 0)
    made.seeds(10, 0)
    made.seeds(5, 0, "--twice")
    assert (made.ran["seeds"], made.ran["twice"]) == (10, 5)
    with pytest.raises(gate.Failed, match="10 runs instead of 20"):
        made.seeds(10, 0, "--twice")
    for script in ("true", "exit 3", "kill -9 $$", "echo 'ok: 10 runs'; exit 1"):
        monkeypatch.setattr(gate, "SIMULATION", program(tmp_path, script))
        with pytest.raises(gate.Failed):
            made.seeds(10, 0)
    monkeypatch.setattr(gate, "FUZZER", program(tmp_path, "true"))
    monkeypatch.setattr(gate, "ROOT", tmp_path)
    (tmp_path / "fuzz/corpus").mkdir(parents=True)
    with pytest.raises(gate.Failed, match="0 targets"):
        made.fuzz(1)


def test_a_fault_that_was_not_played_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "ROOT", tmp_path)
    (tmp_path / "chaos").mkdir()
    made = gate.Gate(0, 0)

    def says(words: str) -> None:
        (tmp_path / "chaos/in_doubt.py").write_text(f"print({words!r})\n")

    says("failover-doubt: ok cases=1 records=20000")
    made.doubt("gone-1")
    assert made.ran["doubts"] == 1
    says(f"{gate.CUT_OFF}\nfailover-doubt: ok cases=0 records=20000")
    made.doubt("cut-host")
    assert made.ran["doubts"] == 1
    for words in (f"{gate.CUT_OFF}\nfailover-doubt: ok cases=0 records=20000", "", "failover-doubt: FAILED"):
        says(words)
        with pytest.raises(gate.Failed, match="it was not played"):
            made.doubt("gone-1")
    (tmp_path / "chaos/failover.py").write_text("print('failover: ok faults=2 records=2390')\n")
    made.failover((11, 3))
    made.failover((3, 5))
    assert made.ran["faults"] == 3
    for faults in ((3,), (12, 3, 5)):
        with pytest.raises(gate.Failed, match="not all faults were played"):
            made.failover(faults)


def test_a_clean_run_with_a_breach_or_a_diff_that_does_not_apply_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "ROOT", tmp_path)
    (tmp_path / "chaos/bugs").mkdir(parents=True)
    patched = tmp_path / "chaos/patched.sh"
    for script, message in [
        ("echo 'error: x.diff does not apply' >&2; exit 1", "bugs: build: exit status 1"),
        (f"echo {program(tmp_path, 'echo seed 4: I4: twice; exit 1')}", "bugs: none chosen: exit status 1"),
        (f"echo {program(tmp_path, 'true')}", "clean run is of fewer"),
    ]:
        patched.write_text(f"#!/bin/sh\n{script}\n")
        patched.chmod(0o755)
        for _ in range(2):
            with pytest.raises(gate.Failed, match=message):
                gate.Gate(0, 0).build_bugs()


def test_a_failure_is_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gate.py", "--seconds", "0"])
    monkeypatch.setattr(gate, "SIMULATION", tmp_path / "chaos/clean")
    for built in (tmp_path / "missing", program(tmp_path, "echo 'seed 0: I4: twice'; exit 1")):
        monkeypatch.setattr(gate, "BUILT", built)
        assert gate.main() == 1
        assert capfd.readouterr().out.splitlines()[-1].startswith("gate: FAILED ")


def test_longer_runs_end_in_time() -> None:
    now = 0.0
    done: list[float] = []

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds
        done.append(seconds)

    def times(share: float, *seconds: float) -> list[float]:
        done.clear()
        made.while_time(share, [partial(work, each) for each in seconds])
        return [*done]

    made = gate.Gate(100, 0, lambda: now)
    assert times(0.5, 20, 20, 20) == [20, 20]
    assert made.left() == 60
    # The longest run so far must fit in the remaining time.
    assert times(1, 25, 5, 10, 1) == [25, 5, 10]
    assert times(1, 31) == [31]
    assert made.left() == -11
    assert times(1, 1) == []


def test_what_ran_is_said_beside_the_goals() -> None:
    made = gate.Gate(0, 0)
    made.ran |= {"seeds": 6, "faults": 1}
    goals = f"bugs=0/{len(gate.bugs())} faults=1/5 doubts=0/{len(gate.DOUBTS)} fuzz-seconds=0/60"
    assert made.summary() == f"seeds=6/30 twice=0/50 {goals}"


def test_seeds_come_in_chunks_without_a_gap() -> None:
    chunks = [*gate.chunks(1, 30)]
    assert [seed for number, at in chunks for seed in range(at, at + number)] == [*range(1, 30)]
    assert max(number for number, _ in chunks) == gate.CHUNK
