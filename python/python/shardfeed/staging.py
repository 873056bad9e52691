"""A folder in which a dataset is written before all of its files get their names."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from pathlib import Path
from types import TracebackType

from shardfeed.errors import ConfigError

_ENDINGS = {"none": "", "gzip": ".gz", "zlib": ".zlib"}
#: Marks a locked staging folder, to tell it from one left by a killed process.
_MARK = "locked"
#: Folder of the files that are being replaced, until all new ones have their names.
_ASIDE = "replaced"
#: List of the new files' names, one a line; written before the first of them gets its name, when all
#: old ones are aside.
_LISTED = "names"


def shard_name(prefix: str, shard: int, shards: int, compression: str) -> str:
    """Returns the name of a shard, as `shardfeed dataset write` names it."""
    return f"{prefix}-{shard:05}-of-{shards:05}.tfrecord{_ENDINGS[compression]}"


def description_name(prefix: str) -> str:
    """Returns the name of the file that describes the shards."""
    return f"{prefix}.shardfeed.json"


def check_prefix(prefix: str) -> str:
    """Returns the prefix; raises `ConfigError` if shards cannot have it."""
    if not isinstance(prefix, str) or not prefix or prefix.startswith("."):
        raise ConfigError(f"prefix={prefix!r} must be a name that does not start with a dot")
    if "/" in prefix or any(ord(letter) < 32 or ord(letter) == 127 for letter in prefix):
        raise ConfigError(f"prefix={prefix!r} holds a slash or a control character")
    return prefix


class Staging:
    """A hidden folder in the shards' directory, for one process at a time; removed at the end with
    its content, unless it holds old shards that could not be moved back. The command and Python use
    the same names, so they exclude each other, and each continues after the other was killed.

    - `force`: whether existing shards may be replaced.
    - `wait`: whether to wait for another shardfeed process that writes the same shards, or to
      raise.

    Raises `ConfigError` if another process writes, or if one was killed while writing without a
    lock.
    """

    def __init__(self, directory: Path, prefix: str, *, force: bool, wait: bool = False) -> None:
        self.directory = directory
        self._prefix, self._force = prefix, force
        self._made = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        self.folder = directory / f".{prefix}.writing"
        self._lock_path = directory / f".{prefix}.lock"
        self._lock: int | None = None
        try:
            self._lock = self._locked(wait)
            self._make()
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Old shards that could not be moved back stay for the next process that writes here.
        if not (self.folder / _ASIDE).exists():
            shutil.rmtree(self.folder, ignore_errors=True)
        self._end()

    def refuse_old(self) -> None:
        """Raises `ConfigError` if there are shards with this prefix that may not be replaced."""
        old = [] if self._force else self._old()
        if old:
            read = "open them with open_source(), " if description_name(self._prefix) in old else ""
            raise ConfigError(
                f"{self.directory} already holds {len(old)} files with the prefix {self._prefix!r}, such as {old[0]}; "
                f"{read}name another prefix= or directory, or replace them with force=True"
            )

    def publish(self, names: list[str]) -> None:
        """Moves these files to the directory, replacing all files with the prefix; moves none on an
        error."""
        try:
            self._move(names)
        except BaseException as error:
            try:
                self._restore()
            except OSError as also:
                raise ConfigError(
                    f"{error or type(error).__name__}; the shards in {self.folder} cannot be moved back: {also}; keep "
                    f"that folder: the next call with this prefix= moves them back"
                ) from error
            raise

    def _move(self, names: list[str]) -> None:
        aside = self.folder / _ASIDE
        aside.mkdir()
        for name in self._old():
            (self.directory / name).rename(aside / name)
        (self.folder / _LISTED).write_bytes(b"\n".join(map(os.fsencode, names)))
        for name in names:
            (self.folder / name).rename(self.directory / name)
        # The names are durable once the folder is.
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # From here on the old files are not moved back.
        aside.rename(self.folder / "obsolete")

    def _restore(self) -> None:
        """Undoes a `publish` that did not end, also that of a killed process; may be repeated."""
        aside, listed = self.folder / _ASIDE, self.folder / _LISTED
        if not aside.exists():
            return
        if listed.exists():
            # The list may have been cut.
            for name in map(os.fsdecode, listed.read_bytes().split(b"\n")):
                if self._is_ours(name):
                    (self.directory / name).unlink(missing_ok=True)
            # The names that follow are those of old files.
            listed.unlink()
        for name in os.listdir(aside):
            (aside / name).rename(self.directory / name)
        aside.rmdir()

    def _old(self) -> list[str]:
        """Returns existing names that a dataset with this prefix could have."""
        return sorted(filter(self._is_ours, os.listdir(self.directory)))

    def _is_ours(self, name: str) -> bool:
        """True if a dataset with this prefix could have a file of this name."""
        shard = re.escape(self._prefix) + r"-[0-9]{5}-of-[0-9]{5}\.tfrecord(\.gz|\.zlib)?"
        return name == description_name(self._prefix) or re.fullmatch(shard, name) is not None

    def _locked(self, wait: bool) -> int | None:
        """Returns a descriptor that holds the lock; None if the file system has no locks."""
        while True:
            # The previous holder may have failed, and removed the directory it created.
            self.directory.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                # That holder removed the directory only now. A link may lead nowhere for ever.
                if self._lock_path.is_symlink():
                    raise
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                if self._is_the_lock(descriptor):
                    return descriptor
                os.close(descriptor)
            except BlockingIOError:
                os.close(descriptor)
                raise ConfigError(
                    f"{self.directory}: another process writes shards with the prefix {self._prefix!r}; wait for it, "
                    f"or name another prefix="
                ) from None
            except OSError:
                # The file may be the lock of a process on another host, and stays.
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise

    def _is_the_lock(self, descriptor: int) -> bool:
        """True if the file still has its name: the holder of the lock removes it at the end."""
        try:
            return os.path.samestat(os.fstat(descriptor), self._lock_path.stat())
        except FileNotFoundError:
            return False

    def _make(self) -> None:
        mark = self.folder / _MARK
        # This process has the lock, so the process that created the marked folder was killed.
        if self._force or (self._lock is not None and mark.exists()):
            try:
                self._restore()
            except OSError as error:
                raise ConfigError(f"cannot move back the shards in {self.folder}: {error}") from error
            shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.mkdir()
        except FileExistsError:
            raise ConfigError(
                f"{self.folder} is there: another process writes these shards, or one did and was killed; wait for "
                f"it, or if there is none, start over with force=True"
            ) from None
        try:
            if self._lock is not None:
                mark.touch()
        except BaseException:
            # Without a mark, it would be in the way of the next process.
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _end(self) -> None:
        if self._lock is not None:
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
        for path in self._made:
            try:
                path.rmdir()
            except OSError:
                break  # Not empty, as expected.
