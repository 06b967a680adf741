"""The article's sites, and the one backend behind every edge: nginx with files."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from lab.balancers import Placement, listening, nginx
from lab.child import Child

SHORT_BYTES, LONG_BYTES = 1_400, 141_000

# A page that requests everything at once, and reports its completion and the protocols.
PAGE = """\
<!doctype html>
<meta charset="utf-8">
<title>{id}</title>
<link rel="icon" href="data:,">
<script>
  const wanted = [];
  for (let each = 0; each < {each_size}; each++) {{
    wanted.push([`/short/${{each}}`, {short_bytes}], [`/long/${{each}}`, {long_bytes}]);
  }}
  performance.setResourceTimingBufferSize(2 * wanted.length);

  async function roundTrip([path, bytes]) {{
    const response = await fetch(path);
    const body = await response.arrayBuffer();
    if (response.status !== 200 || body.byteLength !== bytes) {{
      throw new Error(`${{path}}: ${{response.status}}, ${{body.byteLength}} bytes`);
    }}
  }}

  // The last ones may be written down a moment after their bodies have been read.
  async function entries() {{
    for (;;) {{
      const found = performance.getEntriesByType("resource").filter(entry => entry.initiatorType === "fetch");
      if (found.length === wanted.length) return found.concat(performance.getEntriesByType("navigation"));
      await new Promise(later => setTimeout(later, 1));
    }}
  }}

  async function load() {{
    await Promise.all(wanted.map(roundTrip));
    const ms = performance.now();
    const protocols = {{}};
    for (const entry of await entries()) {{
      protocols[entry.nextHopProtocol] = (protocols[entry.nextHopProtocol] ?? 0) + 1;
    }}
    return {{ms, protocols, round_trips: wanted.length}};
  }}

  window.outcome = load().catch(error => ({{failure: String(error)}}));
</script>
"""

CONFIGURATION = """\
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;

events {{
    worker_connections 4096;
}}

http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    types {{ text/html html; }}

    server {{
        listen {address};
        root {folder}/files;
        etag off;
        # No caching.
        add_header Cache-Control no-store;
        location /short/ {{ try_files /short =404; }}
        location /long/ {{ try_files /long =404; }}
    }}
}}
"""


@dataclass(frozen=True)
class Site:
    """A number of short round trips and the same number of long ones."""

    id: str
    each_size: int

    @property
    def round_trips(self) -> int:
        return 2 * self.each_size

    @property
    def path(self) -> str:
        return f"/{self.id}.html"

    def page(self) -> str:
        return PAGE.format(id=self.id, each_size=self.each_size, short_bytes=SHORT_BYTES, long_bytes=LONG_BYTES)


SITES = {site.id: site for site in (Site("small", 11), Site("medium", 51), Site("large", 101))}


def start_backend(placement: Placement) -> tuple[str, Child]:
    """Starts the backend of all sites; returns its address and process."""
    files = placement.folder / "files"
    files.mkdir()
    # Random content cannot be compressed.
    content = random.Random(4)
    for name, size in (("short", SHORT_BYTES), ("long", LONG_BYTES)):
        (files / name).write_bytes(content.randbytes(size))
    for site in SITES.values():
        (files / site.path.strip("/")).write_text(site.page())
    address = placement.choose_address()
    path = placement.folder / "nginx.conf"
    path.write_text(CONFIGURATION.format(user="user root;", folder=placement.folder, address=address))
    argv = [*nginx.program(), "-c", path, "-p", placement.folder, "-e", "stderr"]
    return address, placement.start("backend", argv, listening(address))
