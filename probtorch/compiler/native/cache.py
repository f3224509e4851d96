"""Object code on disk, so that a program compiles once per machine and not once per run.

What is read back here is executed, so this file is written for distrust. The directory
(``$PROBTORCH_CACHE_DIR``, or ``~/.cache/probtorch``) is created for its owner alone and refused,
with a warning, if anybody else owns it or can write to it, or could put another in its place
because everybody may write to a directory above it. Each entry is one file: a line of
JSON, the object code (none in those of `plans`), and an HMAC-SHA256 of both under a key that only
the user can read. The JSON repeats the entry's name, so a valid entry under another name is refused
too. Whatever fails a check is deleted and compiled again, with one warning per process; nothing is
ever unpickled.

Entries are named by a SHA-256 of everything that the code depends on (`key_of`): IR text, level,
processor and features, LLVM version, the version of this format. Writers write a temporary file
and rename it, so that concurrent processes see a whole entry or none. Only the key is synced: an
entry that a power cut has left in pieces fails its HMAC, and waiting for a disk would take as long
as compiling a small program.
``PROBTORCH_CACHE=0`` switches all of it off.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import itertools
import json
import os
import secrets
import stat
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probtorch.compiler.native import host

__all__ = [
    *("CacheEntry", "directory", "forget_directories", "key_by", "key_of", "load", "prune"),
    *("runtime_key", "store"),
]

# Part of every key: raise it when the meaning of an entry changes, and old ones are never found
# again.
VERSION = 2

# Least recently used entries go when the sum of all sizes passes this; a model's code is 10 to 100
# kB.
MAX_BYTES = 256 * 2**20
# So many, too, since looking for them takes time, and plans are small.
MAX_ENTRIES = 4096

# Counting the directory takes a millisecond per few hundred entries, so not at every store.
_STORES_PER_PRUNE = 32

# A temporary file this old (seconds) was left by a process that died.
_STALE = 3600.0

_KEY_FILE = "key"
_KEY_BYTES = 32
_TAG_BYTES = 32
_SUFFIX = ".entry"

# Asked for with each entry, and parsed once.
_path = functools.cache(Path)

_lock = threading.Lock()
_damaged: set[Path] = set()
_secrets: dict[Path, bytes | None] = {}
_stores = itertools.count()


@dataclass(frozen=True)
class CacheEntry:
    """Object code and the JSON-able facts that were stored with it."""

    data: bytes
    meta: dict[str, Any]


class _Refused(Exception):
    """The directory or its key cannot be trusted; the text says why and what to do."""


def key_of(ir: str, *settings: object) -> str:
    """Return the name, 64 hex digits, of the code for this text and settings on this machine."""
    prefix = json.dumps([VERSION, host.target_signature(), [str(s) for s in settings]])
    return hashlib.sha256(f"{prefix}\n{ir}".encode()).hexdigest()


def key_by(key: str, level: int = 2, slp: bool = False) -> str:
    """Return the name of the code of a module whose text follows from `key`."""
    return key_of(f"key {key}", level, slp)


def runtime_key(module: str, compiler: str) -> str:
    """Return what the text of a module of render/runtime follows from, `sources()` with it."""
    return f"runtime {module} {compiler}"


def directory() -> Path | None:
    """Return the directory in use, or None where the cache is off or refused."""
    path = _configured()
    return path if path is not None and _secret(path) is not None else None


def load(key: str) -> CacheEntry | None:
    """Return the entry of this name, or None if there is none that can be trusted."""
    path = _configured()
    secret = None if path is None else _secret(path)
    if path is None or secret is None:
        return None
    file = os.path.join(path, key + _SUFFIX)
    try:
        content = _read(file)
        # So that pruning takes the least recently used first.
        os.utime(file)
    except OSError:
        return None
    entry = _decode(key, content, secret)
    if entry is None:
        _remove(file)
        _warn_of_damage(path)
    return entry


def store(key: str, data: bytes, meta: dict[str, Any]) -> None:
    """Keep object code under a name from `key_of`.

    Where that is impossible (a full disk, say) nothing happens: the cache is a convenience.

    Parameters
    ----------
    key : str
    data : bytes
    meta : dict
        Facts to return with it; JSON types only.
    """
    path = _configured()
    secret = None if path is None else _secret(path)
    if path is None or secret is None:
        return
    try:
        temporary = _write_temporary(path, _encode(key, data, meta, secret))
        os.replace(temporary, path / (key + _SUFFIX))
        if next(_stores) % _STORES_PER_PRUNE == 0:
            prune(path)
    except OSError:
        return


def prune(path: Path) -> None:
    """Delete what dead processes left, and the least recently used entries beyond the bounds."""
    entries, now = [], time.time()
    for file in path.iterdir():
        try:
            status = file.lstat()
        except FileNotFoundError:
            continue  # another process prunes too
        if file.suffix == ".tmp" and now - status.st_mtime > _STALE:
            _remove(file)
        elif file.suffix == _SUFFIX:
            entries.append((status.st_mtime, status.st_size, file))
    total, count = sum(size for _, size, _ in entries), len(entries)
    for _, size, file in sorted(entries, key=lambda entry: entry[0]):
        if total <= MAX_BYTES and count <= MAX_ENTRIES:
            break
        _remove(file)
        total, count = total - size, count - 1


def forget_directories() -> None:
    """Check directories and their keys again at the next use, as a new process does."""
    with _lock:
        _secrets.clear()
        _damaged.clear()


def _configured() -> Path | None:
    """The directory the user wants, unchecked; None if the cache is off or there is no home."""
    if os.environ.get("PROBTORCH_CACHE", "1") == "0":
        return None
    wanted = os.environ.get("PROBTORCH_CACHE_DIR")
    try:
        return _path(wanted) if wanted else Path.home() / ".cache" / "probtorch"
    except RuntimeError:
        return None


def _secret(path: Path) -> bytes | None:
    """The directory's HMAC key after checking both; None, after one warning, if refused."""
    with _lock:
        if path not in _secrets:
            try:
                _check_directory(path)
                _secrets[path] = _load_key(path)
            except _Refused as reason:
                _secrets[path] = None
                _warn(str(reason))
            except OSError as error:
                _secrets[path] = None
                _warn(f"{path} cannot be used ({error}); set PROBTORCH_CACHE_DIR to one of yours")
        return _secrets[path]


def _warn(reason: str) -> None:
    warnings.warn(
        f"compiled code is not cached: {reason} (or set PROBTORCH_CACHE=0 to work without a cache)",
        RuntimeWarning,
        stacklevel=2,
    )


def _warn_of_damage(path: Path) -> None:
    """Say once per process that entries are not what was stored."""
    with _lock:
        known = path in _damaged
        _damaged.add(path)
    if not known:
        warnings.warn(
            f"compiled code in {path} was damaged or is not this user's; it was deleted and "
            f"compiled again, and so will be any more of it (delete {path} if others may have "
            "written there)",
            RuntimeWarning,
            stacklevel=2,
        )


def _check_directory(path: Path) -> None:
    """Create the directory for us alone, or make sure that it is ours alone to write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise _Refused(f"{path} is a symbolic link; put a real directory there")
    if not stat.S_ISDIR(status.st_mode):
        raise _Refused(f"{path} is no directory; remove it")
    if not _is_ours(status):
        raise _Refused(f"{path} belongs to another user; set PROBTORCH_CACHE_DIR to one of yours")
    if status.st_mode & 0o022:
        raise _Refused(
            f"{path} can be written by other users; delete it, or chmod 700 it if you trust them"
        )
    for above in path.resolve().parents:
        mode = above.stat().st_mode
        # In a sticky directory, as /tmp is, only its owner can rename what somebody has made.
        if hasattr(os, "geteuid") and mode & 0o002 and not mode & stat.S_ISVTX:
            raise _Refused(
                f"everybody can write to {above} and replace what is in it; chmod o-w it, or set "
                "PROBTORCH_CACHE_DIR to a directory elsewhere"
            )


def _load_key(path: Path) -> bytes:
    """Read the HMAC key, made on first use; of several processes the first to link one wins."""
    file = path / _KEY_FILE
    if not os.path.lexists(file):
        temporary = _write_temporary(path, secrets.token_bytes(_KEY_BYTES), synced=True)
        try:
            os.link(temporary, file)
        except FileExistsError:
            pass
        finally:
            _remove(temporary)
    status = os.lstat(file)
    fix = f"delete {path}"
    if not stat.S_ISREG(status.st_mode) or not _is_ours(status):
        raise _Refused(f"{file} is no regular file of yours; {fix}")
    if status.st_mode & 0o077:
        raise _Refused(f"{file} can be read by other users, who could forge entries; {fix}")
    key = _read(file)
    if len(key) != _KEY_BYTES:
        raise _Refused(f"{file} is damaged; {fix}")
    return key


def _is_ours(status: os.stat_result) -> bool:
    # Windows has no such numbers, and keeps home directories apart by access lists.
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def _read(file: str | Path) -> bytes:
    """Read a file that is itself there, not at the end of a link; nothing from what is no file.

    A pipe would keep its reader waiting for whoever writes to it.
    """
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    with os.fdopen(os.open(file, flags), "rb") as stream:
        return stream.read() if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) else b""


def _write_temporary(path: Path, content: bytes, *, synced: bool = False) -> Path:
    """Write a new file that only we can read; returns once it is on the disk with `synced`."""
    file = path / f"{secrets.token_hex(16)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(file, flags, 0o600), "wb") as stream:
            stream.write(content)
            if synced:
                stream.flush()
                os.fsync(stream.fileno())
    except OSError:
        _remove(file)
        raise
    return file


def _remove(file: str | Path) -> None:
    try:
        os.unlink(file)
    except OSError:
        pass


def _encode(key: str, data: bytes, meta: dict[str, Any], secret: bytes) -> bytes:
    header = {
        "version": VERSION,
        "key": key,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "meta": meta,
    }
    content = json.dumps(header).encode() + b"\n" + data
    return content + hmac.digest(secret, content, "sha256")


def _decode(key: str, content: bytes, secret: bytes) -> CacheEntry | None:
    """Return the entry if every check holds; nothing is parsed before it is authenticated."""
    signed, tag = content[:-_TAG_BYTES], content[-_TAG_BYTES:]
    if not hmac.compare_digest(hmac.digest(secret, signed, "sha256"), tag):
        return None
    line, _, data = signed.partition(b"\n")
    header = json.loads(line)
    if header["version"] != VERSION or header["key"] != key or header["size"] != len(data):
        return None
    if header["sha256"] != hashlib.sha256(data).hexdigest():
        return None
    return CacheEntry(data, header["meta"])
