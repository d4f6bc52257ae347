"""As much of a W&B server, on loopback, as the real wandb needs to begin a run, to continue it, and to send its rows.

W&B's own server is not to be had in a test, and without one wandb never learns which steps a run already has.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "0123456789abcdef" * 3
_PROJECT = {"id": "P", "name": "shoal", "entity": {"id": "E", "name": "fish"}}


@dataclass
class Server:
    """What was sent to it."""

    url: str = ""
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    """Rows of each W&B run, by its id."""

    def environ(self) -> dict[str, str]:
        """The variables that send a training's metrics here."""
        return {"WANDB_MODE": "online", "WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    def take(self, path: str, sent: dict[str, Any]) -> dict[str, Any]:
        """Answer one request."""
        if path.endswith("/graphql"):
            return {"data": self._answer(sent["query"], sent.get("variables") or {})}
        if path.endswith("/file_stream"):
            rows = self.rows[path.split("/")[-2]]
            history = sent.get("files", {}).get("wandb-history.jsonl", {"offset": len(rows), "content": []})
            rows[history["offset"] :] = [json.loads(row) for row in history["content"]]
        return {}

    def _answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        if "mutation UpsertBucket" in query:
            run = given["name"]
            bucket = {"id": run, "name": run, "displayName": "", "config": "{}", "project": _PROJECT}
            new = run not in self.rows
            rows = self.rows.setdefault(run, [])
            return {"upsertBucket": {"bucket": {**bucket, "historyLineCount": len(rows)}, "inserted": new}}
        if "query RunResumeStatus" in query:
            rows = self.rows.get(given["name"])
            tail = {"historyTail": json.dumps([json.dumps(rows[-1])]), **_resumable(len(rows))} if rows else None
            return {"model": {**_PROJECT, "bucket": tail and {"id": given["name"], "name": given["name"], **tail}}}
        if "mutation CreateRunFiles" in query:
            return {"createRunFiles": {"runID": "R", "uploadHeaders": [], "files": []}}
        if "viewer" in query:
            return {"viewer": {"id": "V", "entity": "fish", "username": "fish", "email": "", "flags": "{}"}}
        return {}


def _resumable(rows: int) -> dict[str, Any]:
    """What a run says of itself, beside its last row."""
    counts = {"logLineCount": 0, "historyLineCount": rows, "eventsLineCount": 0}
    return {**counts, "summaryMetrics": "{}", "eventsTail": "[]", "config": "{}", "tags": [], "wandbConfig": '{"t": 1}'}


@contextlib.contextmanager
def wandb_server() -> Iterator[Server]:
    """Serve, and stop at the end."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.endswith(("/graphql", "/file_stream")):
                plain = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
                answer = server.take(self.path, json.loads(plain))
            else:  # What wandb tells of itself.
                answer = {}
            text = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
