// Bundles the dashboard into the folder that the binary embeds. Usage: node build.mjs TARGET_FOLDER
import { build } from "esbuild";
import { copyFile, readFile } from "node:fs/promises";
import { join } from "node:path";

const target = process.argv[2];
if (!target) throw new Error("usage: node build.mjs TARGET_FOLDER");

const license = await readFile(join("node_modules", "preact", "LICENSE"), "utf8");
await build({
  entryPoints: { app: "src/main.tsx" },
  outdir: target,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome109", "firefox115", "safari16"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "none",
  banner: { js: `/*! Written by \`make gen\` from dashboard/. It contains Preact:\n${license.trim()}\n*/` },
  logLevel: "warning",
});
await build({
  entryPoints: { app: "src/app.css" },
  outdir: target,
  minify: true,
  logLevel: "warning",
});
for (const file of ["index.html", "icon.svg"]) await copyFile(join("src", file), join(target, file));
