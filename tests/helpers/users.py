"""Python processes run as this user or as another one, with a folder for their temporary files."""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from places import HELPERS

_NUMBER = 12345
_TRULY = ("setpriv", f"--reuid={_NUMBER}", f"--regid={_NUMBER}", "--clear-groups")
_WITHOUT_RIGHTS = ("unshare", "--user", "--map-user=65534", "--map-group=65534")
"""For where another user cannot read this checkout or this Python: one that has no rights, and is called another one."""
THIS, OTHER = "this user", "another user"


@functools.cache
def _prefix(user: str) -> tuple[str, ...]:
    if user == THIS:
        return ()
    for prefix in (_TRULY, _WITHOUT_RIGHTS):
        # Python's own process may still have been started with this user's rights.
        again = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import microrl.sandbox, pytest']))"
        command = [*prefix, sys.executable, "-c", again]
        if subprocess.run(command, capture_output=True, cwd="/", env=_environment("/")).returncode == 0:
            return prefix
    pytest.skip("this machine lets nobody be another user")


def _environment(temporary: object) -> dict[str, str]:
    path = os.pathsep.join([str(HELPERS), *filter(None, sys.path)])
    return {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def own_folder(user: str):
    """A folder of this user's, below one that everybody can read."""
    folder = Path(tempfile.mkdtemp(prefix="microrl-test-"))
    try:
        folder.chmod(0o755)
        if _prefix(user) == _TRULY:
            os.chown(folder, _NUMBER, _NUMBER)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(user: str, temporary: Path, *arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
    """Python with these arguments. `temporary`: where it puts its temporary files."""
    command = [*_prefix(user), sys.executable, *map(str, arguments)]
    environment = _environment(temporary) | {"HOME": str(temporary), "XDG_CACHE_HOME": f"{temporary}/cache"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", **more)
