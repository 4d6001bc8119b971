// graphile-worker. A job is taken and completed by its runner, whose handler here does nothing.
"use strict";

const { EventEmitter } = require("node:events");
const { job, modules, main, parts, payload, priority, range } = require("./client.cjs");
const { Logger, makeWorkerUtils, run } = modules("graphile-worker");
const { Pool } = modules("pg");

const logger = new Logger(() => () => {});
const connectionString = `postgresql://postgres@127.0.0.1:${job.port}/postgres`;
const spec = () => ({ priority: priority() });

async function pool(connections) {
  const made = new Pool({ connectionString, max: connections });
  made.on("error", () => {});
  made.on("connect", (client) => client.on("error", () => {}));
  // All connections are made before the clock runs.
  const clients = await Promise.all(range(connections).map(() => made.connect()));
  for (const client of clients) client.release();
  return made;
}

async function utils(connections) {
  return makeWorkerUtils({ pgPool: await pool(connections), logger });
}

// start(done): starts the runner, which calls done(payload) after each item that is completed in the database.
async function runner() {
  const events = new EventEmitter();
  const batches = job.batch > 1;
  // One runner fetches for all consumers. More handlers at a time, and a longer delay, gained nothing.
  const worker = batches
    ? { localQueue: { size: job.batch * job.connections }, completeJobBatchDelay: 0, concurrentJobs: 24 }
    : { concurrentJobs: job.connections };
  const pgPool = await pool(batches ? job.connections + 2 : job.connections + 1);
  return (done) => {
    events.on("job:complete", ({ job: item, error }) => {
      if (error) throw error;
      done(item.payload);
    });
    return run({
      pgPool,
      logger,
      events,
      noHandleSignals: true,
      pollInterval: 100,
      concurrency: worker.concurrentJobs,
      taskList: { item: async () => {} },
      preset: { worker },
    });
  };
}

main({
  async prepare() {
    const made = await pool(1);
    await made.query("DROP SCHEMA IF EXISTS graphile_worker CASCADE");
    await (await makeWorkerUtils({ pgPool: made, logger })).migrate();
  },

  async produce() {
    const { addJob, addJobs } = await utils(job.connections);
    const next = parts(job.items, job.batch);
    return () =>
      Promise.all(
        range(job.connections).map(async () => {
          for (let count = next(); count; count = next()) {
            if (job.batch === 1) await addJob("item", { payload }, spec());
            else await addJobs(range(count).map(() => ({ identifier: "item", payload: { payload }, ...spec() })));
          }
        }),
      ).then(() => []);
  },

  async consume() {
    const start = await runner();
    let left = job.items;
    return () => new Promise((resolve, reject) => start(() => --left || resolve([])).catch(reject));
  },

  // Each caller waits until its own item is completed.
  async call() {
    const { addJob } = await utils(job.connections);
    const start = await runner();
    const completed = [];
    await start(({ caller }) => completed[caller]());
    const next = parts(job.items, 1);
    const took = [];
    return () =>
      Promise.all(
        range(job.connections).map(async (caller) => {
          while (next()) {
            const done = new Promise((resolve) => {
              completed[caller] = resolve;
            });
            const began = performance.now();
            await addJob("item", { payload, caller }, spec());
            took.push(performance.now() - began);
            await done;
          }
        }),
      ).then(() => took);
  },
});
