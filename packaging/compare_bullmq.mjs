// BullMQ's part of compare.py; runs in a folder that has bullmq in its node_modules. What is measured, and how, is described
// in compare_probe.py.
// compare_bullmq.mjs work | submits JOBS | fill JOBS | singles JOBS, with the Valkey socket in REDIS_URL
import fs from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Queue, Worker } from "bullmq";

const RUNS_AT_ONCE = 100; // jobs that the worker runs at the same time
const AT_ONCE = 50;
const BATCH = 1000;
const RECORD_BYTES = 16;
const FILLER = "x".repeat(180);
const PROBE = process.env.COMPARE_PROBE;
const address = new URL(process.env.REDIS_URL.replace("@/", "@socket/")); // no URL here without a host
const connection = {
  path: decodeURIComponent(address.pathname),
  username: decodeURIComponent(address.username),
  password: decodeURIComponent(address.password),
  maxRetriesPerRequest: null,
};
const now = () => Number(process.hrtime.bigint());
const perSecond = (jobs, began) => (jobs / (now() - began)) * 1e9;
const payload = (number) => ({ number, filler: FILLER });

function work() {
  const file = fs.openSync(PROBE, "a");
  const record = Buffer.alloc(RECORD_BYTES);
  const noop = async (job) => {
    record.writeBigInt64LE(BigInt(job.data.number), 0);
    record.writeBigInt64LE(process.hrtime.bigint(), 8);
    fs.writeSync(file, record);
  };
  const worker = new Worker("noop", noop, { connection, concurrency: RUNS_AT_ONCE });
  worker.on("error", (error) => console.error(error));
  process.once("SIGTERM", async () => { await worker.close(); process.exit(0); });
}

async function fill(queue, jobs) {
  const began = now();
  for (let first = 0; first < jobs; first += BATCH) {
    const length = Math.min(BATCH, jobs - first);
    await queue.addBulk(Array.from({ length }, (_, at) => ({ name: "noop", data: payload(first + at) })));
  }
  return perSecond(jobs, began);
}

async function submits(queue, jobs) {
  const singly = Math.max(AT_ONCE, Math.floor(jobs / 20));
  let began = now();
  for (let number = 0; number < singly; number++) await queue.add("noop", payload(number));
  const submit_in_turn = perSecond(singly, began);
  let next = 0;
  const submitSome = async () => { while (next < 2 * singly) await queue.add("noop", payload(next++)); };
  began = now();
  await Promise.all(Array.from({ length: AT_ONCE }, submitSome));
  const submit_at_once = perSecond(2 * singly, began);
  return { submit_in_turn, submit_at_once, submit_bulk: await fill(queue, Math.max(BATCH, Math.floor(jobs / 4))) };
}

async function singles(queue, jobs) {
  const times = [];
  for (let number = 0; number < jobs; number++) {
    await sleep(20 + 80 * Math.random());
    const sent = process.hrtime.bigint();
    await queue.add("noop", payload(number));
    while (fs.statSync(PROBE).size < (number + 1) * RECORD_BYTES) await sleep(1);
    times.push(Number(fs.readFileSync(PROBE).readBigInt64LE(number * RECORD_BYTES + 8) - sent) / 1e6);
  }
  times.sort((one, other) => one - other);
  return (times[Math.floor((jobs - 1) / 2)] + times[Math.floor(jobs / 2)]) / 2;
}

const [command, jobs] = process.argv.slice(2);
if (command === "work") {
  work();
} else {
  const queue = new Queue("noop", { connection });
  console.log(JSON.stringify(await { fill, submits, singles }[command](queue, Number(jobs))));
  await queue.close();
}
