"""`sandboxed`, where it takes long to remove a folder."""

import time

from sandboxed import handle, serve  # noqa: F401

from microrl.sandbox import folders

TAKES_S = 3.0


def prepare():
    remove = folders.remove

    def slowly(path):
        time.sleep(TAKES_S)
        remove(path)

    folders.remove = slowly
