// A worker written from the worker contract alone: Node's own fetch, nothing of jobd.
//
// node http_worker.mjs URL WORKER_ID [seconds of work per job]

const [url, workerId, workS = "0"] = process.argv.slice(2);
const streams = ["jobs:stream:urgent", "jobs:stream"];
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function call(verb, body) {
  const response = await fetch(`${url}/internal/worker/${verb}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (response.status !== 200) throw new Error(`${verb}: ${response.status} ${JSON.stringify(answer)}`);
  return answer;
}

async function work(payload) {
  await sleep(Number(workS));
  if (payload.fail) throw new TypeError("asked to");
  return { echo: payload };
}

async function run(job) {
  const lease = { worker_id: workerId, job_id: job.job_id, lease_token: job.lease_token };
  const proof = { ...lease, attempt_id: job.attempt_id, stream: job.stream, message_id: job.message_id };
  let lost = false;
  const beating = setInterval(async () => {
    const beat = await call("heartbeat", lease).catch(() => null);
    if (beat && !beat.ok) lost = true;
  }, job.heartbeat_interval_seconds * 1000);
  let report;
  try {
    report = ["complete", { ...proof, result: await work(job.payload) }];
  } catch (e) {
    const error = { code: e.name, message: e.message, stack: e.stack, retryable: false };
    report = ["fail", { ...proof, error }];
  }
  clearInterval(beating);
  if (!lost) await call(...report);
}

for (;;) {
  const job = await call("claim", { worker_id: workerId, streams, max_wait_ms: 5000 });
  if (job.claimed) await run(job);
}
