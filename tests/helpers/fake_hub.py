"""A hub on this machine: the part of its interface that downloading a model takes, for the files of one folder."""

import hashlib
import json
import re
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """What it serves, and what it was asked for: (method, path, first byte)."""

    def __init__(self, folder: Path, name: str) -> None:
        self.files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.name, self.asked = name, []
        self.breaks_after: int | None = None
        """Bytes of a file after which the connection is closed; None: never."""
        self.breaks = 10**6
        """How often it is."""
        self.bytes_a_second: float | None = None

    def downloads(self, file: str) -> list[int]:
        """The first bytes of the downloads of a file."""
        return [first for method, path, first in self.asked if method == "GET" and path.endswith(f"/{file}")]


@contextmanager
def serving(hub: Hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def _json(self, value):
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self):
            self._file(with_body=False)

        def do_GET(self):
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/{hub.name}/revision/") or path == f"/api/models/{hub.name}":
                self._json({"id": hub.name, "modelId": hub.name, "sha": COMMIT, "private": False, "tags": [], "downloads": 0,
                            "siblings": [{"rfilename": name} for name in hub.files]})  # fmt: skip
            elif path.startswith(f"/api/models/{hub.name}/tree/"):
                self._json([{"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                            for name, content in hub.files.items()])  # fmt: skip
            else:
                self._file(with_body=True)

        def _file(self, *, with_body):
            content = hub.files.get(self.path.rpartition("/")[2])
            if content is None or not self.path.startswith(f"/{hub.name}/resolve/"):
                hub.asked.append((self.command, self.path, 0))
                self.send_response(404)
                for key, value in (
                    ("X-Error-Code", "EntryNotFound" if hub.name in self.path else "RepoNotFound"),
                    ("Content-Length", "0"),
                ):
                    self.send_header(key, value)
                self.end_headers()
                return
            wanted = re.fullmatch(r"bytes=(\d+)-\d*", self.headers.get("Range", ""))
            first = int(wanted[1]) if wanted else 0
            hub.asked.append((self.command, self.path, first))
            self.send_response(206 if wanted else 200)
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content) - first))
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            if with_body:
                self._send(content[first:])

        def _send(self, content):
            breaks = hub.breaks_after is not None and hub.breaks_after < len(content) and hub.breaks > 0
            until = hub.breaks_after if breaks else len(content)
            for start in range(0, until, 1 << 16):
                piece = content[start : min(start + (1 << 16), until)]
                with suppress(ConnectionError):  # whoever asked was killed
                    self.wfile.write(piece)
                if hub.bytes_a_second is not None:
                    time.sleep(len(piece) / hub.bytes_a_second)
            if breaks:
                hub.breaks -= 1
                self.connection.close()
                self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
