"""Parses options that are whole numbers or sizes in bytes."""

from __future__ import annotations

import re
from typing import Any

from shardfeed.errors import ConfigError

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def whole_number(name: str, value: Any, least: int, below: int = 2**64) -> int:
    """Returns the option `name` as a whole number in `least`..`below`, `below` being a power of
    2."""
    try:
        number = value.__index__()
    except AttributeError:
        raise ConfigError(f"{name} must be a whole number, not {value!r}") from None
    if isinstance(value, bool):
        raise ConfigError(f"{name} must be a whole number, not {value!r}")
    if number < least or number >= below:
        raise ConfigError(f"{name} must be at least {least} and below 2**{below.bit_length() - 1}, not {value}")
    return int(number)


def byte_size(name: str, value: int | str, least: int) -> int:
    """Returns the option `name` in bytes, from a number or from text with a unit."""
    if not isinstance(value, str):
        return whole_number(name, value, least)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f'{name}={value!r}: use bytes or text like "512MiB" or "4GB"')
    return whole_number(name, int(float(match[1]) * _UNITS[match[2].lower()]), least)
