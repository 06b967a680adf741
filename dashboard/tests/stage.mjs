// A real Sheave in front of real servers, with traffic that differs from backend to backend.
import { spawn, execFileSync } from "node:child_process";
import { mkdtemp, mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { createServer, Agent, request } from "node:http";
import { createServer as createStreamServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const GATEWAY_API = "gateway.networking.k8s.io/v1";

/** A server that answers after a time, or with an error. */
async function endpoint({ delay = 5, errors = 0 } = {}) {
  const server = createServer((request, response) => {
    request.resume();
    setTimeout(() => {
      response.statusCode = Math.random() < errors ? 500 : 200;
      response.end("ok\n");
    }, delay * (0.5 + Math.random()));
  });
  server.keepAliveTimeout = 60_000;
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return { port: server.address().port, close: () => server.close() };
}

const service = (name) => ({
  apiVersion: "v1",
  kind: "Service",
  metadata: { name, namespace: "shop" },
  spec: { ports: [{ name: "http", port: 80 }] },
});

const slices = (name, ports) =>
  ports.map((port) => ({
    apiVersion: "discovery.k8s.io/v1",
    kind: "EndpointSlice",
    metadata: { name: `${name}-${port}`, namespace: "shop", labels: { "kubernetes.io/service-name": name } },
    addressType: "IPv4",
    ports: [{ name: "http", port }],
    endpoints: [{ addresses: ["127.0.0.1"], conditions: { ready: true } }],
  }));

const route = (name, hostname, backendRefs, matches, parents = ["edge"]) => ({
  apiVersion: GATEWAY_API,
  kind: "HTTPRoute",
  metadata: { name, namespace: "shop" },
  spec: {
    parentRefs: parents.map((name) => ({ name })),
    hostnames: [hostname],
    rules: [{ ...(matches ? { matches } : {}), backendRefs: backendRefs.map(([name, weight]) => ({ name, port: 80, weight })) }],
  },
});

const policy = (name, spec) => ({
  apiVersion: "sheave.dev/v1alpha1",
  kind: "BackendPolicy",
  metadata: { name, namespace: "shop" },
  spec: { targetRefs: [{ group: "", kind: "Service", name }], ...spec },
});

const gatewayClass = { apiVersion: GATEWAY_API, kind: "GatewayClass", metadata: { name: "sheave" }, spec: { controllerName: "sheave.dev/gateway" } };

/** Each has an address of its own, for the kernel chooses the ports. */
const gateway = (name, address, listener) => ({
  apiVersion: GATEWAY_API,
  kind: "Gateway",
  metadata: { name, namespace: "shop" },
  spec: { gatewayClassName: "sheave", addresses: [{ type: "IPAddress", value: address }], listeners: [{ port: 0, ...listener }] },
});

function certificate(folder, days) {
  const name = join(folder, `certificate-${days}`);
  execFileSync(
    "openssl",
    ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", String(days), "-subj", "/CN=shop.example", "-addext", "subjectAltName=DNS:shop.example", "-keyout", `${name}.key`, "-out", `${name}.crt`],
    { stdio: "ignore" },
  );
  return Promise.all([readFile(`${name}.crt`, "base64"), readFile(`${name}.key`, "base64")]);
}

async function secret(folder, name, days) {
  const [chain, key] = await certificate(folder, days);
  return {
    apiVersion: "v1",
    kind: "Secret",
    type: "kubernetes.io/tls",
    metadata: { name, namespace: "shop" },
    data: { "tls.crt": chain, "tls.key": key },
  };
}

/** Sends requests at a rate that does not depend on the answers, up to a number in flight. */
function load(port, host, { perSecond, path = "/", most = 64 }) {
  const agent = new Agent({ keepAlive: true, maxSockets: most });
  let inFlight = 0;
  const send = () => {
    if (inFlight >= most) return;
    inFlight += 1;
    const over = () => (inFlight -= 1);
    const asked = request({ host: "127.0.0.1", port, path, agent, headers: { host } }, (answer) => {
      answer.resume();
      answer.on("close", over);
    });
    asked.on("error", over);
    asked.end();
  };
  const timer = setInterval(() => {
    const due = perSecond / 20;
    for (let sent = 0; sent < Math.floor(due) + (Math.random() < due % 1 ? 1 : 0); sent += 1) send();
  }, 50);
  return () => (clearInterval(timer), agent.destroy());
}

export async function writeObjects(folder, file, objects) {
  const hidden = join(folder, `.${file}`);
  await writeFile(hidden, objects.map((it) => JSON.stringify(it)).join("\n---\n"));
  await rename(hidden, join(folder, file));
}

/** Starts `sheave serve` with this configuration, and returns it when it is ready. */
export async function startSheave(binary, folder, configuration, extra = []) {
  const ready = join(folder, `ready-${Math.random()}.json`);
  const child = spawn(binary, ["serve", "--config", configuration, "--admin", "127.0.0.1:0", "--ready-file", ready, ...extra], {
    stdio: ["ignore", "ignore", "pipe"],
  });
  let log = "";
  child.stderr.on("data", (it) => (log = (log + it).slice(-20000)));
  for (let tries = 0; tries < 600; tries += 1) {
    const text = await readFile(ready, "utf8").catch(() => "");
    if (text) {
      const { admin, listeners } = JSON.parse(text);
      const stop = () => new Promise((ended) => (child.once("exit", ended), child.kill("SIGKILL")));
      return { child, admin, listeners, stop, log: () => log };
    }
    if (child.exitCode !== null) break;
    await new Promise((later) => setTimeout(later, 50));
  }
  child.kill("SIGKILL");
  throw new Error(`sheave did not become ready:\n${log}`);
}

/** Everything at once: what the pictures and the tests of all views show. */
export async function startStage(binary) {
  const folder = await mkdtemp(join(tmpdir(), "sheave-dashboard-"));
  const configuration = join(folder, "config");
  await mkdir(configuration);
  const servers = [];
  const ports = async (number, behaviour) => {
    const started = await Promise.all(Array.from({ length: number }, () => endpoint(behaviour)));
    servers.push(...started);
    return started.map((it) => it.port);
  };
  const echo = createStreamServer((socket) => socket.pipe(socket).on("error", () => {}));
  await new Promise((listening) => echo.listen(0, "127.0.0.1", listening));
  const web = await ports(4, { delay: 30 });
  const api = await ports(3, { delay: 60 });
  const cart = [...(await ports(2, { delay: 20 })), ...(await ports(1, { delay: 20, errors: 0.7 }))];
  const search = await ports(2, { delay: 250 });
  const canary = await ports(1, { delay: 30 });
  const closed = await ports(1, {});
  servers.at(-1).close();
  await writeObjects(configuration, "gateway.yaml", [
    gatewayClass,
    gateway("edge", "127.0.0.1", { name: "http", protocol: "HTTP" }),
    gateway("secure", "127.0.0.2", { name: "https", protocol: "HTTPS", tls: { mode: "Terminate", certificateRefs: [{ name: "shop-tls" }, { name: "shop-tls-old" }] } }),
    gateway("streams", "127.0.0.3", { name: "redis", protocol: "TCP" }),
    await secret(folder, "shop-tls", 74),
    await secret(folder, "shop-tls-old", 6),
  ]);
  await writeObjects(configuration, "routes.yaml", [
    route("web", "shop.example", [["web", 9], ["web-canary", 1]], undefined, ["edge", "secure"]),
    route("api", "api.shop.example", [["api", 1]]),
    route("cart", "shop.example", [["cart", 1]], [{ path: { type: "PathPrefix", value: "/cart" } }]),
    route("search", "search.shop.example", [["search", 1]]),
    { apiVersion: "gateway.networking.k8s.io/v1alpha2", kind: "TCPRoute", metadata: { name: "redis", namespace: "shop" }, spec: { parentRefs: [{ name: "streams" }], rules: [{ backendRefs: [{ name: "redis", port: 80 }] }] } },
    ...["web", "web-canary", "api", "cart", "search", "redis"].map(service),
    policy("search", { maxInFlightPerEndpoint: 4, queue: { maxRequests: 16, timeout: "1s" } }),
    policy("api", { maxInFlightPerEndpoint: "auto", queue: { maxRequests: 64, timeout: "2s" } }),
    policy("web", { maxInFlightPerEndpoint: 8, queue: { maxRequests: 64, timeout: "2s" } }),
    policy("cart", { algorithm: "PeakEwma", health: { passive: { ejectOn: "ServerErrors" } } }),
    {
      apiVersion: "sheave.dev/v1alpha1",
      kind: "RateLimitPolicy",
      metadata: { name: "per-tenant", namespace: "shop" },
      spec: { targetRefs: [{ group: "gateway.networking.k8s.io", kind: "HTTPRoute", name: "api" }], limits: [{ requests: 40, period: "1s" }] },
    },
  ]);
  const writeEndpoints = (webPorts) =>
    writeObjects(configuration, "endpoints.yaml", [
      ...slices("web", webPorts),
      ...slices("web-canary", canary),
      ...slices("api", api),
      ...slices("cart", [...cart, ...closed]),
      ...slices("search", search),
      ...slices("redis", [echo.address().port]),
    ]);
  await writeEndpoints(web);
  const sheave = await startSheave(binary, folder, configuration);
  const http = Number(sheave.listeners.find((it) => it.name.includes("/edge/")).address.split(":").at(-1));
  const stops = [
    load(http, "shop.example", { perSecond: 220 }),
    load(http, "api.shop.example", { perSecond: 45 }),
    load(http, "shop.example", { perSecond: 60, path: "/cart" }),
    load(http, "search.shop.example", { perSecond: 36, most: 40 }),
  ];
  return {
    sheave,
    folder,
    configuration,
    http,
    /** A pod more of the busiest backend. */
    async addEndpoint() {
      web.push(...(await ports(1, { delay: 30 })));
      await writeEndpoints(web);
    },
    async breakConfiguration() {
      await writeObjects(configuration, "broken.yaml", [
        policy("web-canary", { maxInFlightPerEndpoint: -3, queue: { maxRequest: 5 } }),
        route("checkout", "shop example", [["checkout", 1]]),
      ]);
    },
    mend: () => rm(join(configuration, "broken.yaml"), { force: true }),
    async stop() {
      stops.forEach((it) => it());
      await sheave.stop();
      servers.forEach((it) => it.close());
      echo.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}
