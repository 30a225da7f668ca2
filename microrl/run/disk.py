"""Recognise errors of a disk that is full or not writable."""

from __future__ import annotations

import errno
import re

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException) -> bool:
    """Whether an error means no space: a full disk, a quota, or a file size limit."""
    return _number(error) in _FULL


def is_refused(error: BaseException) -> bool:
    """Whether an error comes from the operating system: full or read-only disk, missing permissions, deleted folder."""
    return _number(error) is not None


def _number(error: BaseException) -> int | None:
    """The errno of an error, or None. safetensors, written in Rust, has it in its message only."""
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found is not None else None
