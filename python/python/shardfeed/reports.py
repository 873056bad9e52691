"""Types of a loader's reports, for type checkers."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

#: Possible bottlenecks of a rank: docs/PERFORMANCE.md has a row for each.
Bottleneck = Literal[
    "unknown", "trainer", "storage", "inflating", "decoding", "gathering", "window_fill", "memory_budget", "prefetch",
    "held_batches", "coordinator",
]  # fmt: skip


class Why(TypedDict):
    """Result of `Loader.why()`."""

    sentence: str
    limit: Bottleneck
    wait_percent: int
    is_cold: bool
    age_us: int
    because: str
    change: str


class Account(TypedDict):
    """Time breakdown of a loader, in microseconds."""

    setup: dict[str, object]
    epoch: int
    is_first: bool
    idle_us: int
    waiting_us: int | None
    age_us: int
    recent: dict[str, int]
    in_epoch: dict[str, int]
    since_start: dict[str, int]


class Stats(TypedDict):
    """Result of `Loader.stats()`. Optional keys concern stores, GPUs and mode="dynamic"."""

    batches: int
    memory_budget_bytes: int
    copied_batches: int
    skipped: int
    skipped_in_epoch: int
    files_left_out: int
    source: str
    ready: NotRequired[int]
    in_work: NotRequired[int]
    prefetch: NotRequired[int]
    reading: NotRequired[str]
    chunk_bytes: NotRequired[int]
    read_bytes: NotRequired[int]
    reinflated_bytes: NotRequired[int]
    store_requests: NotRequired[int]
    store_retries: NotRequired[int]
    store_bytes: NotRequired[int]
    cached_bytes: NotRequired[int]
    granted: NotRequired[int]
    lookahead: NotRequired[int]
    horizon_waits: NotRequired[int]
    slots: NotRequired[int]
    slots_in_use: NotRequired[int]
    slot_bytes: NotRequired[int]
    slots_mapped_total: NotRequired[int]
    wait_seconds: NotRequired[float]
    account: NotRequired[Account]
    device: NotRequired[str]
    device_slots: NotRequired[int]
    device_slot_bytes: NotRequired[int]
    device_ahead: NotRequired[int]
    device_batches: NotRequired[int]
    device_late_batches: NotRequired[int]
    device_bytes: NotRequired[int]
    device_pageable_batches: NotRequired[int]
    device_pinned_bytes: NotRequired[int]
    device_extra_slots: NotRequired[int]
