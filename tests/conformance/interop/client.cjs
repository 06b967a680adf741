// Client of gRPC's interop tests, with grpc-js: runs the named cases one after another.
//
//     node client.cjs --server_port=PORT --test_case=CASE,CASE,... [--ca_file=FILE --server_host_override=NAME]
//
// The cases are those of the gRPC interop test descriptions. The options have the names that other interop clients use.
"use strict";

const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { parseArgs } = require("node:util");

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

// Bound for a whole case.
const MILLISECONDS = 60_000;
const LARGE_REQUEST_BYTES = 271_828;
const LARGE_RESPONSE_BYTES = 314_159;
const REQUEST_BYTES = [27_182, 8, 1_828, 45_904];
const RESPONSE_BYTES = [31_415, 9, 2_653, 58_979];
const INITIAL_KEY = "x-grpc-test-echo-initial";
const TRAILING_KEY = "x-grpc-test-echo-trailing-bin";
const INITIAL_VALUE = "test_initial_metadata_value";
const TRAILING_VALUE = Buffer.from([0xab, 0xab, 0xab]);
const SPECIAL_MESSAGE = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";

const definition = loader.loadSync(path.join(__dirname, "testing.proto"), { keepCase: true });
const { TestService, UnimplementedService } = grpc.loadPackageDefinition(definition).grpc.testing;

const payload = (size) => ({ body: Buffer.alloc(size) });
const largeRequest = () => ({ response_size: LARGE_RESPONSE_BYTES, payload: payload(LARGE_REQUEST_BYTES) });
const deadline = (milliseconds = MILLISECONDS) => ({ deadline: Date.now() + milliseconds });
const streamingRequest = (responseBytes, requestBytes) => ({
  response_parameters: [{ size: responseBytes }],
  payload: payload(requestBytes),
});

/** Collects what a call yields: its messages, metadata and status. Given a listener, calls it for each message. */
function outcome(call, onMessage = () => {}) {
  return new Promise((resolve) => {
    const seen = { messages: [] };
    call.on("metadata", (metadata) => (seen.metadata = metadata));
    call.on("status", (status) => (seen.status = status));
    call.on("data", (message) => {
      seen.messages.push(message);
      onMessage(message);
    });
    // A status other than OK is an error too, and the last event is "end" or "error".
    call.on("error", () => resolve(seen));
    call.on("end", () => setImmediate(() => resolve(seen)));
  });
}

/** Makes a call with a single response. */
function unary(client, method, request, metadata = new grpc.Metadata()) {
  return new Promise((resolve) => {
    const seen = {};
    const call = client[method](request, metadata, deadline(), (error, response) => {
      seen.error = error;
      seen.response = response;
    });
    call.on("metadata", (received) => (seen.metadata = received));
    call.on("status", (status) => {
      seen.status = status;
      setImmediate(() => resolve(seen));
    });
  });
}

function checkStatus(seen, code, details) {
  assert.equal(seen.status.code, code, JSON.stringify(seen.status));
  if (details !== undefined) assert.equal(seen.status.details, details);
}

const checkSizes = (messages, sizes) => assert.deepEqual(messages.map((message) => message.payload.body.length), sizes);

function customMetadata() {
  const metadata = new grpc.Metadata();
  metadata.set(INITIAL_KEY, INITIAL_VALUE);
  metadata.set(TRAILING_KEY, TRAILING_VALUE);
  return metadata;
}

function checkMetadata(seen) {
  assert.deepEqual(seen.metadata.get(INITIAL_KEY), [INITIAL_VALUE]);
  assert.deepEqual(seen.status.metadata.get(TRAILING_KEY), [TRAILING_VALUE]);
}

async function checkEchoedStatus({ service }, message) {
  const response_status = { code: grpc.status.UNKNOWN, message };
  checkStatus(await unary(service, "UnaryCall", { response_status }), grpc.status.UNKNOWN, message);
  const call = service.FullDuplexCall(deadline());
  call.end({ response_status });
  checkStatus(await outcome(call), grpc.status.UNKNOWN, message);
}

const CASES = {
  async empty_unary({ service }) {
    const seen = await unary(service, "EmptyCall", {});
    checkStatus(seen, grpc.status.OK);
    assert.deepEqual(seen.response, {});
  },
  async large_unary({ service }) {
    const seen = await unary(service, "UnaryCall", largeRequest());
    checkStatus(seen, grpc.status.OK);
    checkSizes([seen.response], [LARGE_RESPONSE_BYTES]);
  },
  async client_streaming({ service }) {
    const response = await new Promise((resolve, reject) => {
      const call = service.StreamingInputCall(deadline(), (error, value) => (error ? reject(error) : resolve(value)));
      REQUEST_BYTES.forEach((size) => call.write({ payload: payload(size) }));
      call.end();
    });
    assert.equal(response.aggregated_payload_size, REQUEST_BYTES.reduce((sum, size) => sum + size));
  },
  async server_streaming({ service }) {
    const response_parameters = RESPONSE_BYTES.map((size) => ({ size }));
    const seen = await outcome(service.StreamingOutputCall({ response_parameters }, deadline()));
    checkStatus(seen, grpc.status.OK);
    checkSizes(seen.messages, RESPONSE_BYTES);
  },
  async ping_pong({ service }) {
    const call = service.FullDuplexCall(deadline());
    let sent = 0;
    const next = () => {
      if (sent === REQUEST_BYTES.length) return call.end();
      call.write(streamingRequest(RESPONSE_BYTES[sent], REQUEST_BYTES[sent]));
      sent += 1;
    };
    next();
    const seen = await outcome(call, next);
    checkStatus(seen, grpc.status.OK);
    checkSizes(seen.messages, RESPONSE_BYTES);
  },
  async empty_stream({ service }) {
    const call = service.FullDuplexCall(deadline());
    call.end();
    const seen = await outcome(call);
    checkStatus(seen, grpc.status.OK);
    assert.deepEqual(seen.messages, []);
  },
  async timeout_on_sleeping_server({ service }) {
    const call = service.FullDuplexCall(deadline(1));
    call.write(streamingRequest(RESPONSE_BYTES[0], REQUEST_BYTES[0]));
    checkStatus(await outcome(call), grpc.status.DEADLINE_EXCEEDED);
  },
  async cancel_after_begin({ service }) {
    const error = await new Promise((resolve) => service.StreamingInputCall(deadline(), resolve).cancel());
    assert.equal(error.code, grpc.status.CANCELLED);
  },
  async cancel_after_first_response({ service }) {
    const call = service.FullDuplexCall(deadline());
    call.write(streamingRequest(RESPONSE_BYTES[0], REQUEST_BYTES[0]));
    const seen = await outcome(call, () => call.cancel());
    checkStatus(seen, grpc.status.CANCELLED);
    checkSizes(seen.messages, [RESPONSE_BYTES[0]]);
  },
  status_code_and_message: (clients) => checkEchoedStatus(clients, "test status message"),
  special_status_message: (clients) => checkEchoedStatus(clients, SPECIAL_MESSAGE),
  async custom_metadata({ service }) {
    const seen = await unary(service, "UnaryCall", largeRequest(), customMetadata());
    checkSizes([seen.response], [LARGE_RESPONSE_BYTES]);
    checkMetadata(seen);
    const call = service.FullDuplexCall(customMetadata(), deadline());
    call.end(streamingRequest(RESPONSE_BYTES[0], REQUEST_BYTES[0]));
    const streamed = await outcome(call);
    checkSizes(streamed.messages, [RESPONSE_BYTES[0]]);
    checkMetadata(streamed);
  },
  async unimplemented_method({ service }) {
    checkStatus(await unary(service, "UnimplementedCall", {}), grpc.status.UNIMPLEMENTED);
  },
  async unimplemented_service({ unimplemented }) {
    checkStatus(await unary(unimplemented, "UnimplementedCall", {}), grpc.status.UNIMPLEMENTED);
  },
};

function connect(options) {
  const target = `${options.server_host}:${options.server_port}`;
  const authority = options.ca_file && fs.readFileSync(options.ca_file);
  const credentials = authority ? grpc.credentials.createSsl(authority) : grpc.credentials.createInsecure();
  const name = options.server_host_override;
  const channel = name ? { "grpc.ssl_target_name_override": name, "grpc.default_authority": name } : {};
  return {
    service: new TestService(target, credentials, channel),
    unimplemented: new UnimplementedService(target, credentials, channel),
  };
}

async function main() {
  const text = { type: "string" };
  const { values } = parseArgs({
    options: {
      server_host: { type: "string", default: "127.0.0.1" },
      server_port: text,
      test_case: text,
      ca_file: text,
      server_host_override: text,
    },
  });
  const clients = connect(values);
  for (const name of values.test_case.split(",")) {
    await CASES[name](clients);
    console.log(name);
  }
  clients.service.close();
  clients.unimplemented.close();
}

// grpc-js leaves the timer of a cancelled call's deadline behind: without an exit the process would wait for it.
main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
