"""Real git repositories, a login node that is this machine, and a git server with a certificate and a password."""

from __future__ import annotations

import base64
import http.server
import os
import ssl
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from speedrun_operator.login.command import Completed

ME = {
    "GIT_AUTHOR_NAME": "me",
    "GIT_AUTHOR_EMAIL": "me@localhost",
    "GIT_COMMITTER_NAME": "me",
    "GIT_COMMITTER_EMAIL": "me@localhost",
    "GIT_AUTHOR_DATE": "2026-07-01T12:00:00Z",
    "GIT_COMMITTER_DATE": "2026-07-01T12:00:00Z",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


class Repository:
    """A checkout with real commits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.path), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ME, timeout=20, check=True)
        return done.stdout

    def commit(self, files: Mapping[str, str]) -> str:
        """A new commit with these files changed, whose id is returned."""
        for name, text in files.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", f"change {', '.join(files)}")
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD").strip()


class LocalLogin:
    """What the login node does, done here: the real bash and git, with a home of its own. Counts its commands."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C", **environment}
        self.commands: list[str] = []

    async def run(self, script: str, *, stdin: bytes = b"", timeout: float, max_output: int = 0) -> Completed:  # noqa: ASYNC109
        self.commands.append(script)
        bash = ["/bin/bash", "--noprofile", "--norc", "-p", "-c", script]
        done = subprocess.run(  # noqa: ASYNC221
            bash, input=stdin, capture_output=True, env=self.environment, cwd=self.home, timeout=timeout, check=False
        )
        return Completed(done.stdout, done.stderr, done.returncode)


@contextmanager
def https(folder: Path, certificate: Path, key: Path, password: str) -> Iterator[str]:
    """The repositories in `folder`, served to user x-access-token or `me` with `password`; gives the URL."""
    allowed = {f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" for user in ("x-access-token", "me")}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") not in allowed:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            url = urllib.parse.urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            variables = {
                "GIT_PROJECT_ROOT": str(folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": urllib.parse.unquote(url.path),
                "QUERY_STRING": url.query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
            }
            done = subprocess.run(
                ["git", "http-backend"], input=body, capture_output=True, env=os.environ | variables, check=True
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
