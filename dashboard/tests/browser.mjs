// The dashboard in a real browser. Usage: node tests/browser.mjs SHEAVE BROWSER SCENARIO
// It prints each failure, and exits with 1 if there is one.
import axe from "axe-core";
import { mkdtemp, mkdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { startRelay } from "./relay.mjs";
import { startSheave, startStage, writeObjects } from "./stage.mjs";

const [binary, browserPath, scenario] = process.argv.slice(2);
const failures = [];
const check = (isTrue, sentence) => {
  if (!isTrue) failures.push(sentence);
};
/** Longer than anything takes on a busy machine. */
const PATIENCE_MS = 30_000;

const VIEWS = ["overview", "flow", "backends", "backend?name=shop%2Fweb%3A80", "queue", "replicas", "layer4", "certificates", "problems", "explain?url=http%3A%2F%2Fshop.example%2Fcart"];
/** As the API server's proxy has it. */
const PREFIX = "/api/v1/namespaces/sheave-system/pods/sheave:9900/proxy";
const TITLES = { layer4: "L4 and transparent", replicas: "Replicas and leases", queue: "Queue and 429s" };

const title = (view) => {
  const id = view.split("?")[0];
  return TITLES[id] ?? id[0].toUpperCase() + id.slice(1);
};

/** A page that reports what no page of ours may do. */
async function openPage(browser, url, options = {}) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const origin = new URL(url).origin;
  const heard = { errors: [], isQuiet: true };
  page.on("console", (it) => heard.isQuiet && it.type() === "error" && check(false, `console: ${it.text()}`));
  page.on("pageerror", (error) => check(false, `script: ${error.message}`));
  page.on("dialog", (it) => (check(false, `dialog: ${it.message()}`), it.dismiss()));
  page.on("request", (it) => check(it.url().startsWith(origin) || it.url().startsWith("data:"), `request to ${it.url()}`));
  return { page, heard, close: () => context.close() };
}

/** Address of the dashboard; with DASHBOARD_FILES it has the files of that folder instead of the binary's. */
async function address(sheave) {
  const files = process.env.DASHBOARD_FILES;
  return files ? (await startRelay({ admin: sheave.admin, files })).url : `http://${sheave.admin}/dashboard/`;
}

const text = (page) => page.locator("main").innerText();

/** Waits until the view shows its content. */
async function settle(page, view) {
  await page.waitForFunction((name) => document.querySelector("h1")?.textContent === name, title(view));
  await page.waitForFunction(() => document.querySelector("main .panel, main .empty") && !document.querySelector("[aria-busy]"));
}

async function audit(page, place) {
  await page.evaluate(axe.source);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  for (const it of violations) check(false, `axe, ${place}: ${it.id}: ${it.help}: ${it.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
}

const scenarios = {
  /** Every view with traffic: right content, no error, no foreign request, accessible, no sideways scrolling. */
  async views(browser) {
    const stage = await startStage(binary);
    try {
      const url = await address(stage.sheave);
      for (const colorScheme of ["light", "dark"]) {
        for (const width of [1280, 390]) {
          const { page, close } = await openPage(browser, url, { colorScheme, viewport: { width, height: 800 }, reducedMotion: "reduce" });
          for (const view of VIEWS) {
            await page.goto(`${url}#/${view}`);
            await settle(page, view);
            const place = `${view}, ${colorScheme}, ${width}`;
            await audit(page, place);
            const excess = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
            check(excess <= 0, `${place}: ${excess} pixels wider than the window`);
          }
          await close();
        }
      }
      const { page } = await openPage(browser, url, { viewport: { width: 1280, height: 800 } });
      const shows = async (view, ...parts) => {
        await page.goto(`${url}#/${view}`);
        await settle(page, view);
        for (const part of parts) {
          const isShown = await page.waitForFunction((part) => document.querySelector("main").innerText.includes(part), part).catch(() => null);
          check(isShown, `${view} does not show ${part}`);
        }
      };
      await shows("overview", "shop/web:80", "shop/cart/0", "Requests per second");
      await shows("backends", "shop/search:80", "shop/redis:80");
      await shows("backend?name=shop%2Fsearch%3A80", "2 endpoints", "fixed", "127.0.0.1:");
      await shows("queue", "queue_full", "shop/per-tenant");
      await shows("layer4", "redis", "Transparent mode is off");
      await shows("certificates", "Secret shop/shop-tls", "expires soon");
      await shows("problems", "The configuration has no errors");
      await stage.breakConfiguration();
      await shows("problems", "spec.maxInFlightPerEndpoint", "broken.yaml, document 1");
      await stage.mend();
      await shows("problems", "The configuration has no errors");
      await shows("explain?url=http%3A%2F%2Fshop.example%2Fcart%2F7", "shop/cart/0", "/cart");

      // A new endpoint appears in the picture and gets its share.
      await page.goto(`${url}#/flow`);
      await page.locator(".node-label", { hasText: "127.0.0.1:" }).first().waitFor();
      const shares = (kind) => page.evaluate((kind) => [...document.querySelectorAll(".flow g")].filter((it) => it.querySelector(`.node-bar${kind}`)).map((it) => it.querySelector("title").textContent), kind);
      check((await shares(".new")).length === 0, "an endpoint of the first answer counts as new");
      await stage.addEndpoint();
      const hasShare = await page.waitForFunction(() => {
        const bar = document.querySelector(".flow .node-bar.new");
        const note = bar?.parentElement.querySelector("title").textContent ?? "";
        const share = Number(/: (\d+) %/.exec(note)?.[1] ?? 0);
        return share >= 10 && share <= 35;
      }).catch(() => null);
      check(hasShare, `the new endpoint has no fair share in the picture: ${await shares(".new")}`);
    } finally {
      await stage.stop();
    }
  },

  /** Sheave without routes, then one that goes away and comes back. */
  async reconnect(browser) {
    const folder = await mkdtemp(join(tmpdir(), "sheave-dashboard-"));
    const configuration = join(folder, "config");
    await mkdir(configuration);
    await writeObjects(configuration, "class.yaml", [{ apiVersion: "gateway.networking.k8s.io/v1", kind: "GatewayClass", metadata: { name: "sheave" }, spec: { controllerName: "sheave.dev/gateway" } }]);
    let sheave = await startSheave(binary, folder, configuration);
    const relay = await startRelay({ admin: sheave.admin, prefix: PREFIX, files: process.env.DASHBOARD_FILES });
    try {
      const { page, heard } = await openPage(browser, relay.url, { viewport: { width: 1280, height: 800 } });
      // Without the slash at the end: the answer sends the browser to the same prefix.
      const answer = await page.goto(relay.url.slice(0, -1));
      check(answer.url() === relay.url, `the page behind a prefix is at ${answer.url()}`);
      for (const [view, sentence] of [
        ["overview", "There is no backend"],
        ["flow", "Nothing flows yet"],
        ["backends", "There is no backend"],
        ["backend?name=no%2Fsuch%3A80", "There is no backend of this name"],
        ["queue", "No backend has a queue"],
        ["layer4", "Every listener serves HTTP"],
        ["certificates", "No listener terminates TLS"],
        ["problems", "The configuration has no errors"],
      ]) {
        heard.isQuiet = !view.startsWith("backend?");
        await page.goto(`${relay.url}#/${view}`);
        await settle(page, view);
        check((await text(page)).includes(sentence), `${view}: it does not say: ${sentence}`);
        await audit(page, `${view}, empty`);
      }
      await page.goto(`${relay.url}#/overview`);
      await settle(page, "overview");
      heard.isQuiet = false;
      relay.cut();
      await sheave.stop();
      await page.getByRole("alert").getByText("Sheave does not answer; trying again").waitFor();
      await audit(page, "without an answer");
      sheave = await startSheave(binary, folder, configuration);
      relay.mend(sheave.admin);
      await page.getByRole("alert").waitFor({ state: "detached" });
      await page.getByText("ready", { exact: true }).waitFor();
    } finally {
      relay.close();
      await sheave.stop();
      await rm(folder, { recursive: true, force: true });
    }
  },

  /** Names and messages that try to be markup, to turn the direction of text, or to be invisible. */
  async hostile(browser) {
    const stage = await startStage(binary);
    try {
      const url = await address(stage.sheave);
      const { page, heard } = await openPage(browser, url, { viewport: { width: 1280, height: 800 } });
      const markup = "<script>alert(1)</script><img src=x onerror=alert(2)>";
      await writeObjects(stage.configuration, "hostile.yaml", [
        { apiVersion: "gateway.networking.k8s.io/v1", kind: "HTTPRoute", metadata: { name: `${markup}\u202egnp.exe\u0007`, namespace: "shop" }, spec: { parentRefs: [{ name: "edge" }], hostnames: [`${markup}\u200b.example`], [`${markup}`]: 1 } },
      ]);
      await page.goto(`${url}#/problems`);
      await page.getByText("<script>alert(1)</script>").first().waitFor();
      const shown = await text(page);
      check(shown.includes("\\u{202e}gnp.exe") || shown.includes("\\u{200b}"), `invisible characters are not shown: ${shown}`);
      check(!/[\u0000-\u0008\u202e\u200b]/.test(shown), "control characters reach the page");
      await audit(page, "hostile problems");
      heard.isQuiet = false;
      for (const [method, asked] of [["GET", `http://${markup}/`], ["GET", `http://shop.example/\u202e${markup}`], ["G<b>", "http://shop.example/"], ["GET", "javascript:alert(3)"], ["GET", "http://shop.example:99999/"]]) {
        await page.goto(`${url}#/overview`);
        await page.goto(`${url}#/explain?method=${encodeURIComponent(method)}&url=${encodeURIComponent(asked)}`);
        await page.getByRole("heading", { name: "Explanation" }).waitFor();
        check(!/[\u0000-\u0008\u202e\u200b]/.test(await text(page)), `control characters reach the explanation of ${asked}`);
      }
      await page.goto(`${url}#/backend?name=${encodeURIComponent(markup)}`);
      await page.getByText("There is no backend of this name").waitFor();
      const scripts = await page.evaluate(() => document.querySelectorAll("main script, main img, body > script").length);
      check(scripts === 0, "markup of a name became an element");
      // The browser itself refuses a script of the page that is not the dashboard's.
      const isRun = await page.evaluate(() => {
        const script = document.createElement("script");
        script.textContent = "globalThis.isRun = true";
        document.body.append(script);
        return globalThis.isRun === true;
      });
      check(!isRun, "the content security policy lets an inline script run");
    } finally {
      await stage.stop();
    }
  },
};

const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox"] });
try {
  await scenarios[scenario](browser);
} finally {
  await browser.close();
}
const unique = [...new Set(failures)];
for (const it of unique) console.error(it);
process.exit(unique.length > 0 ? 1 : 0);
