// Produce one task with nothing but a Kafka client: `npm install kafkajs && node produce.mjs [localhost:9092]`.
import { randomUUID } from "node:crypto";
import { Kafka, logLevel } from "kafkajs";

const kafka = new Kafka({ brokers: [process.argv[2] ?? "localhost:9092"], logLevel: logLevel.ERROR });
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
await producer.connect();
const task_id = `js-${randomUUID().slice(0, 8)}`;
const task = { task_id, workflow: "math", prompt: "What is 17 + 25?", answer: "42" };
await producer.send({ topic: "trinity.tasks", acks: -1, messages: [{ key: task_id, value: JSON.stringify(task) }] });
await producer.disconnect();
console.log(task_id);
