"""What a scraper sees of a worker: its counters over HTTP."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tenantfair import metrics


class MetricsServer:
    """Serves this process's counters at `/metrics` in Prometheus text format."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (_Server6 if ":" in host else _Server)((host, port), _Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            name="tenantfair-metrics",
            daemon=True,
            kwargs={"poll_interval": 0.5},
        )

    @property
    def port(self) -> int:
        """The port in use, also when it was left to the system by 0."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and give the port back."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = metrics.render().encode()
        self.send_response(200)
        self.send_header("Content-Type", metrics.CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape every few seconds is no news."""
