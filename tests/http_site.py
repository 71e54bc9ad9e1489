"""A real HTTP server with ranges, whose files and failures a test chooses."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class Site:
    """Files over HTTP; counts what is asked for."""

    def __init__(self):
        self.files, self.asked, self.ranges, self.failing = {}, [], True, 0
        self.posted, self.answers_posts = [], 200
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                """Quiet."""

            def do_HEAD(self):
                self.answer(body=False)

            def do_GET(self):
                site.asked.append((self.path, self.headers.get("Range")))
                self.answer(body=True)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                site.posted.append((self.path, dict(self.headers), body.decode()))
                self.send_response(site.answers_posts)
                self.send_header("Location", site.url("/elsewhere"))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def answer(self, body):
                content = site.files.get(unquote(self.path))
                if body and site.failing > 0:
                    site.failing -= 1
                    content = None
                    self.send_response(503)
                elif content is None:
                    self.send_response(404)
                else:
                    requested = re.fullmatch(
                        r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")
                    )
                    if requested and site.ranges:
                        first, last = map(int, requested.groups())
                        size, content = len(content), content[first : last + 1]
                        self.send_response(206)
                        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
                    else:
                        self.send_response(200)
                    self.send_header("ETag", site.etag)
                    for name, value in site.headers.items():
                        self.send_header(name, value)
                    if site.ranges:
                        self.send_header("Accept-Ranges", "bytes")
                content = content or b""
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if body:
                    self.wfile.write(content)

        self.etag, self.headers = '"1"', {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def url(self, name):
        return f"http://127.0.0.1:{self.server.server_port}{name}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
