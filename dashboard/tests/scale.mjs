// First paint and cost with 1,000 backends of 100 endpoints each. Usage: node tests/scale.mjs SHEAVE BROWSER [SECONDS]
import { readFile, mkdtemp, mkdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { startSheave, writeObjects } from "./stage.mjs";

const [binary, browserPath, seconds = "60"] = process.argv.slice(2);
const later = (ms) => new Promise((over) => setTimeout(over, ms));
const [BACKENDS, ENDPOINTS] = [1000, 100];

const GATEWAY_API = "gateway.networking.k8s.io/v1";
const folder = await mkdtemp(join(tmpdir(), "sheave-scale-"));
const configuration = join(folder, "config");
await mkdir(configuration);
const names = Array.from({ length: BACKENDS }, (_, index) => `service-${index}`);
await writeObjects(configuration, "all.yaml", [
  { apiVersion: GATEWAY_API, kind: "GatewayClass", metadata: { name: "sheave" }, spec: { controllerName: "sheave.dev/gateway" } },
  { apiVersion: GATEWAY_API, kind: "Gateway", metadata: { name: "edge" }, spec: { gatewayClassName: "sheave", addresses: [{ type: "IPAddress", value: "127.0.0.1" }], listeners: [{ name: "http", protocol: "HTTP", port: 0 }] } },
  ...names.flatMap((name, index) => [
    { apiVersion: GATEWAY_API, kind: "HTTPRoute", metadata: { name }, spec: { parentRefs: [{ name: "edge" }], hostnames: [`${name}.example`], rules: [{ backendRefs: [{ name, port: 80 }] }] } },
    { apiVersion: "v1", kind: "Service", metadata: { name }, spec: { ports: [{ name: "http", port: 80 }] } },
    {
      apiVersion: "discovery.k8s.io/v1",
      kind: "EndpointSlice",
      metadata: { name, labels: { "kubernetes.io/service-name": name } },
      addressType: "IPv4",
      ports: [{ name: "http", port: 8080 }],
      endpoints: Array.from({ length: ENDPOINTS }, (_, endpoint) => ({
        addresses: [`10.${100 + Math.floor(index / 250)}.${index % 250}.${endpoint + 1}`],
        conditions: { ready: true },
      })),
    },
  ]),
]);
const sheave = await startSheave(binary, folder, configuration);
const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox"] });
/** CPU seconds of Sheave so far. */
const cpu = async () => {
  const fields = (await readFile(`/proc/${sheave.child.pid}/stat`, "utf8")).split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
};
const measure = async (label) => {
  const [before, began] = [await cpu(), Date.now()];
  await later(Number(seconds) * 1000);
  const share = ((await cpu()) - before) / ((Date.now() - began) / 1000);
  console.log(`${label}: ${(share * 100).toFixed(2)} % of a CPU over ${seconds} s`);
};
try {
  await later(5000);
  await measure("no dashboard");
  for (const view of ["overview", "flow", `backend?name=${encodeURIComponent("default/service-7:80")}`]) {
    const page = await browser.newPage();
    const began = Date.now();
    await page.goto(`http://${sheave.admin}/dashboard/#/${view}`);
    await page.waitForFunction(() => document.querySelector("main .panel tbody, main .flow"));
    const content = Date.now() - began;
    const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
    console.log(`${view}: first paint ${paint.toFixed(0)} ms, content ${content} ms`);
    await measure(view);
    await page.close();
  }
} finally {
  await browser.close();
  await sheave.stop();
  await rm(folder, { recursive: true, force: true });
}
