// Stores each line of its input as an order, at most once: seq 1 100 | node producer.js
const { readFileSync } = require("node:fs");
const { EnqueueRequest, ItemSpec } = require("./gen-nodejs/foqs_types");
const { again, call, close, context, ns } = require("./host");

function order(line) {
  const priority = line.startsWith("urgent") ? 1 : 5; // lower is more urgent
  return new ItemSpec({ topic: "orders", payload: Buffer.from(line), priority, delay_ms: 500, dedup_key: line });
}

async function main() {
  let [stored, duplicates, refused] = [0, 0, 0];
  const items = readFileSync(0, "utf8").split("\n").filter(Boolean).map(order);
  const until = Date.now() + 60_000;
  const sent = call(() => until, async (client) => {
    let failed = null;
    while (items.length && !failed) {
      const batch = items.slice(0, 100);
      const { outcomes } = await client.Enqueue(new EnqueueRequest({ ns, items: batch, context }));
      items.splice(0, batch.length);
      outcomes.forEach(({ error, duplicate }, n) => {
        if (duplicate) duplicates++;
        else if (!error) stored++;
        else if (again(error)) {
          items.push(batch[n]);
          failed = error;
        } else {
          refused++;
          console.error(`refused: ${batch[n].payload}: ${error.message}`);
        }
      });
    }
    if (failed) throw failed;
  });
  await sent.finally(() => {
    close();
    console.log(`${stored} stored, ${duplicates} duplicates, ${refused} refused, ${items.length} unknown`);
  });
  process.exitCode = refused ? 1 : 0;
}

main();
