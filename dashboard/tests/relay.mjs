// A relay in front of an admin API: below a path prefix, as the API server's proxy puts one; it can be cut off, and can
// serve the dashboard's files from a folder instead, for work on them.
import { createServer, request } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join } from "node:path";

const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };

export async function startRelay({ admin, prefix = "", files = null }) {
  const state = { admin, isCut: false };
  const sockets = new Set();
  const server = createServer(async (asked, answer) => {
    if (!asked.url.startsWith(prefix)) return answer.writeHead(404).end();
    const path = asked.url.slice(prefix.length);
    const file = files && /^\/dashboard\/([\w.]*)$/.exec(path);
    if (file) {
      const name = file[1] || "index.html";
      const text = await readFile(join(files, name)).catch(() => null);
      if (text) return answer.writeHead(200, { "content-type": TYPES[extname(name)] }).end(text);
    }
    const [host, port] = state.admin.split(":");
    const onward = request({ host, port, path, method: asked.method, headers: { ...asked.headers, host: state.admin } }, (reply) => {
      answer.writeHead(reply.statusCode, reply.headers);
      reply.pipe(answer);
    });
    onward.on("error", () => answer.destroy());
    asked.pipe(onward);
  });
  server.on("connection", (socket) => {
    if (state.isCut) return socket.destroy();
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return {
    url: `http://127.0.0.1:${server.address().port}${prefix}/dashboard/`,
    /** Every connection is refused from now on. */
    cut: () => ((state.isCut = true), sockets.forEach((it) => it.destroy())),
    /** Connections reach this admin API from now on. */
    mend: (admin) => Object.assign(state, { admin, isCut: false }),
    close: () => (server.close(), sockets.forEach((it) => it.destroy())),
  };
}
