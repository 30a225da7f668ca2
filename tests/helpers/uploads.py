"""A hub on this machine that takes uploads: the part of its interface that creates a repository and commits files to it."""

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Uploads:
    """What it was sent. `private`: by the id of each repository that is there, whether only its owner sees it."""

    def __init__(self, token: str, private: dict[str, bool] | None = None) -> None:
        self.token, self.private, self.created, self.files = token, private or {}, [], {}


@contextmanager
def taking(uploads: Uploads):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def _json(self, value, status=200, **headers):
            body = json.dumps(value).encode()
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name.replace("_", "-"), text)
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
            asked = "/".join(self.path.partition("/api/models/")[2].split("/")[:2])
            if asked and asked not in uploads.private:
                self._json({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
                return
            private = uploads.private.get(asked, False)
            self._json({"name": "me", "id": asked, "sha": "0" * 40, "siblings": [], "private": private})

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self._is_refused():
                return
            if self.path == "/api/repos/create":
                uploads.created.append(json.loads(body))
                made = uploads.created[-1]
                uploads.private.setdefault(f"me/{made['name']}", made.get("private") or made.get("visibility") == "private")
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
