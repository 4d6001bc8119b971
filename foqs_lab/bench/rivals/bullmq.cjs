// BullMQ. A dequeue of several items does not exist: consumers take `batch` items at the same time, one call each.
"use strict";

const { job, modules, main, parts, payload, priority, range } = require("./client.cjs");
const { Queue, Worker } = modules("bullmq");

const connection = { host: "127.0.0.1", port: job.port };
const options = () => ({ priority: priority(), removeOnComplete: true, removeOnFail: true });

async function queue() {
  const made = new Queue(job.queue, { connection });
  await made.waitUntilReady();
  return made;
}

async function worker(processor, more) {
  const made = new Worker(job.queue, processor, { connection, autorun: false, ...more });
  made.on("error", (error) => {
    throw error;
  });
  await made.waitUntilReady();
  return made;
}

main({
  async produce() {
    const queues = await Promise.all(range(job.connections).map(queue));
    const next = parts(job.items, job.batch);
    return () =>
      Promise.all(
        queues.map(async (each) => {
          for (let count = next(); count; count = next()) {
            if (job.batch === 1) await each.add("item", payload, options());
            else await each.addBulk(range(count).map(() => ({ name: "item", data: payload, opts: options() })));
          }
        }),
      ).then(() => []);
  },

  async consume() {
    const workers = await Promise.all(range(job.connections).map(() => worker(async () => {}, { concurrency: job.batch })));
    let left = job.items;
    return () =>
      new Promise((resolve, reject) => {
        for (const each of workers) {
          each.on("completed", () => --left || resolve([]));
          each.on("failed", (_, error) => reject(error));
          each.run();
        }
      });
  },

  async call() {
    const callers = await Promise.all(
      range(job.connections).map(async (at) => [await queue(), await worker(null), `caller-${at}`]),
    );
    const next = parts(job.items, 1);
    const took = [];
    return () =>
      Promise.all(
        callers.map(async ([producer, consumer, token]) => {
          while (next()) {
            const began = performance.now();
            await producer.add("item", payload, options());
            took.push(performance.now() - began);
            let taken;
            while (!taken) taken = await consumer.getNextJob(token, { block: false });
            await taken.moveToCompleted(null, token, false);
          }
        }),
      ).then(() => took);
  },
});
