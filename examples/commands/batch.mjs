// Submit a batch of two tasks and wait for its result, with nothing but a Kafka client and msgpack:
// `npm install kafkajs @msgpack/msgpack && node batch.mjs [localhost:9092] [namespace] [batch id]`.
import { randomUUID } from "node:crypto";
import { decode } from "@msgpack/msgpack";
import { Kafka, logLevel } from "kafkajs";

const [server = "localhost:9092", namespace = "trinity", batch_id = `js-${randomUUID().slice(0, 8)}`] =
  process.argv.slice(2);
const client = `batch.mjs-${randomUUID().slice(0, 8)}`;
const kafka = new Kafka({ brokers: [server], logLevel: logLevel.ERROR });
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
const consumer = kafka.consumer({ groupId: `${namespace}.${client}` });

const waiting = new Map();
let count = 0;

async function ask(command, fields) {
  const command_id = `${client}/${++count}`;
  const reply = new Promise((resolve) => waiting.set(command_id, resolve));
  const record = { schema: `command.${command}`, client, command_id, batch_id, ...fields };
  await producer.send({
    topic: `${namespace}.commands`,
    acks: -1,
    messages: [{ key: batch_id, value: JSON.stringify(record) }],
  });
  const { error, detail, result } = await reply;
  if (error) throw new Error(`${error}: ${detail}`);
  return result;
}

await Promise.all([producer.connect(), consumer.connect()]);
try {
  await consumer.subscribe({ topic: `${namespace}.replies` });
  // From the start of this on, replies are read: none can be missed that is asked for later.
  const ready = new Promise((resolve) => consumer.on(consumer.events.FETCH_START, resolve));
  await consumer.run({
    eachMessage: async ({ message }) => {
      const reply = decode(message.value);
      waiting.get(reply.command_id)?.(reply);
    },
  });
  await ready;

  await ask("submit_batch", { expected_task_count: 2 });
  const messages = [0, 1].map((number) => {
    const task_id = `${batch_id}/${number}`;
    const question = { prompt: `What is ${number} + 25?`, answer: String(number + 25) };
    return { key: task_id, value: JSON.stringify({ task_id, batch_id, batch_size: 2, workflow: "math", ...question }) };
  });
  await producer.send({ topic: `${namespace}.tasks`, acks: -1, messages });
  console.log(JSON.stringify(await ask("finalize_batch", { timeout_s: 600 })));
} finally {
  await consumer.disconnect();
  await producer.disconnect();
}
