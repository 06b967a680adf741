// A relay in front of an admin API: below a path prefix, as the API server's proxy puts one; it can be cut off, and can
// serve the dashboard's files from a folder instead, for work on them.
import { createServer, request } from "node:http";
import { readFile } from "node:fs/promises";
import { join } from "node:path";

export async function startRelay({ admin, prefix = "", files = null }) {
  const state = { admin, isCut: false };
  const sockets = new Set();
  const server = createServer(async (asked, answer) => {
    if (!asked.url.startsWith(prefix)) return answer.writeHead(404).end();
    const path = asked.url.slice(prefix.length);
    const file = files && /^\/dashboard\/([\w.]*)$/.exec(path);
    const own = file && (await readFile(join(files, file[1] || "index.html")).catch(() => null));
    const [host, port] = state.admin.split(":");
    const onward = request({ host, port, path, method: asked.method, headers: { ...asked.headers, host: state.admin } }, (reply) => {
      const { etag, "content-length": length, ...others } = reply.headers;
      // The fields are Sheave's, also for a file of the folder.
      answer.writeHead(reply.statusCode, own ? others : reply.headers);
      if (own) reply.resume().on("end", () => answer.end(own));
      else reply.pipe(answer);
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
