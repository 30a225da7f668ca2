"""A hub on this machine that takes uploads: the part of its interface that creates a repository and commits files to it."""

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Uploads:
    """What it was sent."""

    def __init__(self, token: str) -> None:
        self.token, self.created, self.files = token, [], {}


@contextmanager
def taking(uploads: Uploads):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def _json(self, value, status=200):
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _is_refused(self):
            if self.headers.get("Authorization") == f"Bearer {uploads.token}":
                return False
            self._json({"error": "Invalid username or password."}, 401)
            return True

        def do_HEAD(self):
            self._json({})

        def do_GET(self):
            if self._is_refused():
                return
            self._json({"name": "me", "id": "me/adapter", "sha": "0" * 40, "siblings": []})

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self._is_refused():
                return
            if self.path == "/api/repos/create":
                uploads.created.append(json.loads(body))
                self._json({"url": f"http://{self.headers['Host']}/me/{uploads.created[-1]['name']}"})
            elif "/preupload/" in self.path:
                asked = json.loads(body)["files"]
                self._json({"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in asked]})
            elif "/commit/" in self.path:
                for line in map(json.loads, body.decode().splitlines()):
                    if line["key"] == "file":
                        uploads.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                self._json({"commitUrl": f"http://{self.headers['Host']}/me/adapter/commit/{'1' * 40}", "commitOid": "1" * 40})
            else:  # the check of the card's front matter
                self._json({"errors": [], "warnings": []})

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
