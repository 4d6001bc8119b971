// Stores each line of its input as an order, at most once: seq 1 100 | node producer.js
const { createInterface } = require("node:readline");
const { EnqueueRequest, ItemSpec } = require("./gen-nodejs/foqs_types");
const { again, call, close, context, ns } = require("./host");

const BATCH = 100;
const counts = { stored: 0, duplicates: 0, refused: 0 };

function order(line) {
  const priority = line.startsWith("urgent") ? 1 : 5; // lower is more urgent
  return new ItemSpec({ topic: "orders", payload: Buffer.from(line), priority, delay_ms: 500, dedup_key: line });
}

async function store(lines) {
  let items = lines.map(order);
  const until = Date.now() + 60_000;
  await call(() => until, async (client) => {
    const { outcomes } = await client.Enqueue(new EnqueueRequest({ ns, items, context }));
    const open = outcomes.findIndex(({ error }) => error && again(error));
    const sent = items;
    items = sent.filter((_, n) => outcomes[n].error && again(outcomes[n].error));
    outcomes.forEach(({ error, duplicate }, n) => {
      if (!error) counts[duplicate ? "duplicates" : "stored"] += 1;
      else if (!again(error)) {
        counts.refused += 1;
        console.error(`refused: ${sent[n].payload}: ${error.message}`);
      }
    });
    if (items.length) throw outcomes[open].error;
  });
  console.log(`${counts.stored} stored, ${counts.duplicates} duplicates, ${counts.refused} refused`);
}

async function main() {
  let lines = [];
  for await (const line of createInterface({ input: process.stdin })) {
    if (lines.push(line) < BATCH) continue;
    await store(lines);
    lines = [];
  }
  if (lines.length) await store(lines);
  close();
  process.exitCode = counts.refused ? 1 : 0;
}

main();
