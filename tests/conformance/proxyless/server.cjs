// Server of the tests of Sheave's xDS server, with grpc-js-xds.
//
//     node server.cjs serve-xds NAME
//
// It does what `serve-xds` in main.go does for the method /shop.Cart/Get.
"use strict";

const net = require("node:net");

const grpc = require("@grpc/grpc-js");
const xds = require("@grpc/grpc-js-xds");

const BIND_TRIES = 10;

const name = process.argv[3];
/** Encodes a StringValue of less than 128 bytes: its tag, its length, and the text. */
const encoded = (text) => Buffer.concat([Buffer.from([0x0a, Buffer.byteLength(text)]), Buffer.from(text)]);
const method = {
  path: "/shop.Cart/Get",
  requestStream: false,
  responseStream: false,
  requestSerialize: (bytes) => bytes,
  requestDeserialize: (bytes) => bytes,
  responseSerialize: encoded,
  responseDeserialize: (bytes) => bytes,
};

/** Resolves to a port that is free now: the name of the server's listener has it. */
function freePort() {
  return new Promise((resolve, reject) => {
    const probe = net.createServer().on("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

async function main() {
  xds.register();
  const credentials = new xds.XdsServerCredentials(grpc.ServerCredentials.createInsecure());
  for (let tries = 1; ; tries += 1) {
    const server = new xds.XdsServer();
    server.addService({ Get: method }, { Get: (_, answer) => answer(null, name) });
    const address = `127.0.0.1:${await freePort()}`;
    const bound = await new Promise((resolve) => server.bindAsync(address, credentials, (error) => resolve(!error)));
    if (bound) {
      console.log(address);
      return;
    }
    if (tries === BIND_TRIES) throw new Error(`cannot bind ${address}`);
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
