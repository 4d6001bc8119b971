// Works on orders until SIGTERM: node worker.js
const { setTimeout: sleep } = require("node:timers/promises");
const types = require("./gen-nodejs/foqs_types");
const { call, close, context, ns } = require("./host");

const LEASE_MS = Number(process.env.LEASE_MS || 30_000);
const worker = `orders-${process.pid}`;
let until = Infinity; // once it stops: how long it tries to report what it has done

async function work(order, attempt) {
  if (order.startsWith("flaky") && attempt === 1) throw new Error("the payment service is busy");
  await sleep(order.startsWith("long") ? 2_500 : 10);
  console.log(`done: ${order}, attempt ${attempt}`);
}

// Sends Ack, Nack or ExtendLease of one item.
function report(method, item) {
  const request = new types[`${method}Request`]({ ns, items: [item], context });
  return call(() => until, async (client) => {
    const [{ error }] = (await client[method](request)).outcomes;
    if (error) throw error;
  });
}

async function handle({ id, lease, payload, attempt }) {
  const extend = () => report("ExtendLease", new types.ExtendItem({ id, lease })).catch(() => {}); // the ack tells
  const extending = setInterval(extend, LEASE_MS / 3);
  const reason = await work(payload.toString(), attempt).catch((error) => error.message);
  clearInterval(extending);
  const done = reason
    ? report("Nack", new types.NackItem({ id, lease, failed: true, delay_ms: 1_000 * attempt, reason }))
    : report("Ack", new types.AckItem({ id, lease }));
  // NOT_FOUND or STALE_LEASE: an earlier try succeeded, or the lease has ended and the item comes again.
  await done.catch((error) => console.error(`item ${id}: ${error.message}`));
}

async function main() {
  const wants = [new types.TopicCount({ topic: "orders", count: 10 })];
  const request = new types.DequeueRequest({ ns, wants, lease_ms: LEASE_MS, wait_ms: 5_000, worker, context });
  while (until === Infinity) {
    const { items } = await call(() => until, (client) => client.Dequeue(request));
    if (until === Infinity) await Promise.all(items.map(handle));
    else for (const { id, lease } of items) await report("Nack", new types.NackItem({ id, lease, release: true }));
  }
  close();
}

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.once(signal, () => {
    console.error("stopping");
    until = Date.now() + 10_000;
  });
}
main();
