"""Makes files unwritable, also for root."""

import contextlib
import ctypes
import os
import pathlib
from collections.abc import Iterator

_VERSION_3 = 0x20080522
_OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_SETS = ctypes.c_uint32 * 6  # effective, permitted, inheritable; then their upper 32 bits


@contextlib.contextmanager
def permissions_hold() -> Iterator[None]:
    """Makes file permissions apply to this thread, also if it belongs to root."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    before = _SETS()
    if libc.capget(header, before):
        raise OSError(ctypes.get_errno(), "capget")
    restricted = _SETS(*before)
    restricted[0] &= ~_OVERRIDES
    if libc.capset(header, restricted):
        raise OSError(ctypes.get_errno(), "capset")
    try:
        yield
    finally:
        libc.capset(header, before)


@contextlib.contextmanager
def read_only(folder: os.PathLike) -> Iterator[None]:
    """Makes a folder and its contents read-only."""
    paths = [pathlib.Path(folder), *pathlib.Path(folder).rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    try:
        with permissions_hold():
            yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
