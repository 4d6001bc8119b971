// The part that all clients for node share: the dialogue with the bench (foqs_lab/bench/clients.py), and helpers.
"use strict";

const { createInterface } = require("node:readline");
const { createRequire } = require("node:module");
const { randomBytes } = require("node:crypto");

const job = JSON.parse(process.argv[2]);
const modules = createRequire(`${job.modules}/`);

const now = () => Number(process.hrtime.bigint()) / 1e9;
const cpu = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};

// Text, because most of the queues store JSON.
const payload = randomBytes(job.payload_bytes / 2).toString("hex");
const priority = () => 1 + Math.floor(Math.random() * 1000);
const range = (count) => Array.from({ length: count }, (_, at) => at);

// Gives out `total` in parts of at most `most`, then 0.
function parts(total, most) {
  let left = total;
  return () => {
    const part = Math.min(left, most);
    left -= part;
    return part;
  };
}

// roles: connect functions by name, each of which resolves to the measured function.
async function main(roles) {
  const run = await roles[job.role]();
  console.log("ready");
  let started = false;
  for await (const line of createInterface({ input: process.stdin })) {
    started = line === "go";
    break;
  }
  if (!started) process.exit(0);
  // The bench closes the pipe when it has the report, or has given up.
  process.stdin.resume().on("end", () => process.exit(0));
  const began = now();
  const used = cpu();
  const enqueue_ms = (await run()) ?? [];
  const report = { began, ended: now(), cpu_s: cpu() - used, enqueue_ms };
  console.log(JSON.stringify(report));
}

module.exports = { job, modules, main, parts, payload, priority, range };
