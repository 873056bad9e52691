"""Names of shards that say how many there are."""

from __future__ import annotations

import re


def missing_shards(shards: list[str]) -> list[str]:
    """Returns missing files of names like `x-00003-of-00010`, which state the number of files."""
    numbered = re.compile(r"(.*)-([0-9]{2,})-of-([0-9]{2,})(\..*)?")
    if numbered.fullmatch(shards[0]) is None:
        return []
    sets: dict[tuple[str, str, str], set[int]] = {}
    for shard in shards:
        match = numbered.fullmatch(shard)
        if match is not None:
            prefix, number, total, suffix = match.groups(default="")
            sets.setdefault((prefix, total, suffix), set()).add(int(number))
    return [
        f"{prefix}-{number:0{len(total)}}-of-{total}{suffix}"
        for (prefix, total, suffix), found in sets.items()
        for number in range(min(int(total), 10**6))
        if number not in found
    ]
