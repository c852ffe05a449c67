"""A Hub of our own on loopback: the routes that huggingface_hub asks for a dataset's files, and what can go wrong."""

import hashlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """`files` by name. `faults` are used up, one a request by method and file: a status and headers, or a fault."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[tuple[str, str], list[tuple[int, dict[str, str]] | str]] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def clear(self) -> None:
        self.files, self.faults, self.requests = {}, {}, []

    def asked(self, method: str) -> Counter[str]:
        """How often each file was asked for."""
        return Counter(name for how, name, _ in self.requests if how == method)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def fault(self, method: str, name: str) -> str | None:
            """Answers with the next fault if that is a status; else gives its name."""
            hub.requests.append((method, name, {key.lower(): value for key, value in self.headers.items()}))
            waiting = hub.faults.get((method, name), [])
            if not waiting:
                return None
            fault = waiting.pop(0)
            if isinstance(fault, str):
                return fault
            self.answer(fault[0], fault[1])
            return "answered"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            asked = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body)["paths"]
            asked = [asked] if isinstance(asked, str) else asked
            if self.fault("INFO", asked[0]):
                return
            entries = []
            for name in asked:
                if name in hub.files:
                    size, digest = len(hub.files[name]), hashlib.sha256(hub.files[name]).hexdigest()
                    lfs = {"oid": digest, "size": size, "pointerSize": 134}
                    entries.append({"type": "file", "path": name, "size": size, "oid": "0" * 40, "lfs": lfs})
            self.answer(200, {"Content-Type": "application/json"}, json.dumps(entries).encode())

        def do_HEAD(self) -> None:
            self.serve("HEAD")

        def do_GET(self) -> None:
            self.serve("GET")

        def serve(self, method: str) -> None:
            name = self.path.rsplit("/", 1)[-1]
            fault = self.fault(method, name)
            if fault == "answered":
                return
            if name not in hub.files:
                return self.answer(404, {"X-Error-Code": "EntryNotFound"})
            content = hub.files[name]
            digest = hashlib.sha256(content).hexdigest()
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
            headers |= {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            if fault == "damaged":
                content = content[:-1] + bytes([content[-1] ^ 1])
            part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            status = 200
            if part:
                first, last = int(part[1]), int(part[2]) if part[2] else len(content) - 1
                headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                content, status = content[first : last + 1], 206
            if method == "HEAD":
                return self.answer(status, headers | {"Content-Length": str(len(content))})
            if fault == "cut":
                self.send_response(status)
                for key, value in (headers | {"Content-Length": str(len(content))}).items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(content[: len(content) // 2])
                self.wfile.flush()
                self.close_connection = True
                return None
            return self.answer(status, headers, content)

    return Handler
