// Client of the tests of Sheave's xDS server, with grpc-js-xds.
//
//     node client.cjs TARGET
//
// Its commands and answers are those of `call` in main.go.
"use strict";

const readline = require("node:readline");

const grpc = require("@grpc/grpc-js");
const xds = require("@grpc/grpc-js-xds");

// Longer than any call takes on a busy machine.
const PATIENCE_MILLISECONDS = 60_000;
const STREAMS = 4;

xds.register();
const plaintext = grpc.credentials.createInsecure();
const credentials = process.env.XDS_CREDENTIALS ? new xds.XdsChannelCredentials(plaintext) : plaintext;
const client = new grpc.Client(process.argv[2], credentials);
const empty = () => Buffer.alloc(0);
/** Decodes a StringValue of less than 128 bytes: its tag, its length, and the text. */
const text = (message) => message.subarray(2).toString();

/** Makes a call; resolves to the name of the server. */
function invoke(method, fields = []) {
  const metadata = new grpc.Metadata();
  for (const field of fields) metadata.add(...field.split("="));
  const options = { deadline: Date.now() + PATIENCE_MILLISECONDS };
  return new Promise((resolve, reject) => {
    const answered = (error, name) => (error ? reject(error) : resolve(name));
    client.makeUnaryRequest(method, empty, text, null, metadata, options, answered);
  });
}

const increment = (counts, name) => counts.set(name, (counts.get(name) ?? 0) + 1);

const described = (counts) => [...counts].map(([name, count]) => `${name}=${count}`).sort().join(" ");

async function record(method, fields, counts) {
  try {
    increment(counts, await invoke(method, fields));
  } catch (error) {
    console.error(method, error.message);
    increment(counts, "failed");
    increment(counts, `status-${error.code}`);
  }
}

/** Calls until the server has answered; resolves to the microseconds that it took. */
async function wait(name) {
  const began = performance.now();
  while (performance.now() < began + PATIENCE_MILLISECONDS) {
    const answered = await invoke("/shop.Cart/Get").catch((error) => console.error("wait", error.message));
    if (answered === name) return Math.round(1000 * (performance.now() - began));
  }
  throw new Error(`${name} has not answered`);
}

/** Calls in the background. */
const background = { running: false, counts: new Map(), loops: [] };

function start(method) {
  background.running = true;
  background.counts = new Map([["failed", 0]]);
  background.loops = Array.from({ length: STREAMS }, async () => {
    while (background.running) await record(method, [], background.counts);
  });
}

async function stop() {
  background.running = false;
  await Promise.all(background.loops);
  return described(background.counts);
}

/** Runs a command; resolves to its answer, if it has one. */
async function run([command, argument, ...fields]) {
  switch (command) {
    case "wait":
      return wait(argument);
    case "stream":
      return start(argument);
    case "stop":
      return stop();
    default: {
      const counts = new Map([["failed", 0]]);
      for (let call = 0; call < Number(argument); call += 1) await record(command, fields, counts);
      return described(counts);
    }
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const answer = await run(line.trim().split(/\s+/));
    if (answer !== undefined) console.log(answer);
  }
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
