// One connection to any host of a cluster, and the calls over it.
const { setTimeout: sleep } = require("node:timers/promises");
const thrift = require("thrift");
const Foqs = require("./gen-nodejs/Foqs");
const { ErrorCode, RequestContext } = require("./gen-nodejs/foqs_types");

const addresses = (process.env.FOQS_ADDRESS || "127.0.0.1:7707").split(",");
const AGAIN = [ErrorCode.OVERLOADED, ErrorCode.UNAVAILABLE, ErrorCode.OUTCOME_UNKNOWN];
let turn = 0;
let open = null;

class Lost extends Error {}

exports.ns = process.env.FOQS_NAMESPACE || "default";
exports.context = new RequestContext({ token: process.env.FOQS_TOKEN, timeout_ms: 10_000 });
exports.again = (error) => error instanceof Lost || AGAIN.includes(error.code);
exports.close = () => open?.connection.destroy();

function connect() {
  const [host, port] = addresses[turn++ % addresses.length].split(":");
  const connection = thrift.createConnection(host, Number(port), {
    transport: thrift.TFramedTransport,
    protocol: thrift.TBinaryProtocol,
    timeout: 30_000, // longer than wait_ms and timeout_ms together
  });
  const lost = new Promise((_, reject) => {
    connection.on("error", (error) => reject(new Lost(error.message || error.code)));
    connection.on("timeout", () => reject(new Lost("no answer")));
    connection.on("close", () => reject(new Lost("connection closed")));
  });
  const made = { client: thrift.createClient(Foqs, connection), connection, lost };
  lost.catch(() => {
    connection.destroy();
    if (open === made) open = null;
  });
  return made;
}

// Repeats what may be repeated, each time at the next host, until the time that until() returns.
exports.call = async (until, request) => {
  for (let pause = 100; ; pause = Math.min(2 * pause, 5_000)) {
    const { client, connection, lost } = (open ??= connect());
    try {
      return await Promise.race([request(client), lost]);
    } catch (error) {
      if (!exports.again(error) || Date.now() >= until()) throw error;
      console.error(`trying again: ${error.message}`);
      connection.destroy();
      await sleep(Math.max(pause, Number(error.retry_after_ms ?? 0)));
    }
  }
};
