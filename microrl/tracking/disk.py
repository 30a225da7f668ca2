"""A full disk, as it shows."""

from __future__ import annotations

import errno
import re

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException) -> bool:
    """Whether an error says that there is no room: no space, a quota, or a limit on a file's size.

    safetensors writes in Rust and gives the number in its message only.
    """
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    found = re.search(r"\(os error (\d+)\)", str(error))
    return found is not None and int(found[1]) in _FULL
