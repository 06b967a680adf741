// Pictures of the dashboard with real traffic. Usage: node tests/pictures.mjs SHEAVE BROWSER FOLDER [VIEW,...]
// Without views: those of docs/operate/dashboard.md. With views, or `all`: each in light and dark, wide and narrow, for a
// look at a change; DASHBOARD_FILES names a folder with other files than the binary's.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { startRelay } from "./relay.mjs";
import { startStage } from "./stage.mjs";

const [binary, browserPath, folder, extent] = process.argv.slice(2);
if (!folder) throw new Error("usage: node tests/pictures.mjs SHEAVE BROWSER FOLDER [VIEW,...]");

const later = (ms) => new Promise((over) => setTimeout(over, ms));
const BACKEND = encodeURIComponent("shop/cart:80");
const URL_EXPLAINED = encodeURIComponent("http://shop.example/cart/7");
const VIEWS = {
  overview: "overview",
  flow: "flow",
  backends: "backends",
  backend: `backend?name=${BACKEND}`,
  queue: "queue",
  replicas: "replicas",
  layer4: "layer4",
  certificates: "certificates",
  problems: "problems",
  explain: `explain?method=GET&url=${URL_EXPLAINED}`,
};
/** Those that docs/operate/dashboard.md shows. */
const DOCUMENTED = ["overview", "flow", "backend", "explain"];

await mkdir(folder, { recursive: true });
const stage = await startStage(binary);
const files = process.env.DASHBOARD_FILES ?? null;
const relay = await startRelay({ admin: stage.sheave.admin, files });
const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox"] });
try {
  // A dashboard is open from the beginning, so that the curves have their fine steps.
  const watcher = await browser.newPage();
  await watcher.goto(`${relay.url}#/overview`);
  await later(extent ? 45_000 : 150_000);
  const shots = [];
  const take = async (scheme, width, names) => {
    const context = await browser.newContext({ colorScheme: scheme, viewport: { width, height: width < 500 ? 844 : 800 }, reducedMotion: "reduce" });
    for (const name of names) {
      const page = await context.newPage();
      page.on("console", (it) => it.type() === "error" && console.error(name, it.text()));
      page.on("pageerror", (error) => console.error(name, error.message));
      if (name === "problems") await stage.breakConfiguration();
      await page.goto(`${relay.url}#/${VIEWS[name]}`);
      await later(name === "flow" ? 3500 : 3000);
      if (name === "flow") {
        await stage.addEndpoint();
        await later(4500);
      }
      const path = join(folder, extent ? `${name}-${scheme}-${width}.png` : `${name}.png`);
      const height = await page.evaluate(() => document.documentElement.scrollHeight);
      await page.setViewportSize({ width, height: Math.min(height, extent ? 2400 : 1000) });
      await later(300);
      await page.screenshot({ path });
      shots.push(path);
      if (name === "problems") await stage.mend();
      await page.close();
    }
    await context.close();
  };
  if (extent) {
    for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 390], ["dark", 390]]) {
      await take(scheme, width, extent === "all" ? Object.keys(VIEWS) : extent.split(","));
    }
  } else {
    await take("light", 1280, DOCUMENTED);
  }
  console.log(shots.join("\n"));
} finally {
  await browser.close();
  relay.close();
  await stage.stop();
}
