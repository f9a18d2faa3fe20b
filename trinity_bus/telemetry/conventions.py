"""Names of span and metric attributes, in one place.

The messaging names follow OpenTelemetry's messaging conventions for Kafka. The ``rl.`` names are this project's own:
there is no convention yet for reinforcement learning.
"""

# Messaging, https://opentelemetry.io/docs/specs/semconv/messaging/kafka/
MESSAGING_SYSTEM = "messaging.system"
MESSAGING_OPERATION_NAME = "messaging.operation.name"
MESSAGING_OPERATION_TYPE = "messaging.operation.type"
MESSAGING_DESTINATION_NAME = "messaging.destination.name"
MESSAGING_DESTINATION_TEMPLATE = "messaging.destination.template"
MESSAGING_DESTINATION_PARTITION_ID = "messaging.destination.partition.id"
MESSAGING_CLIENT_ID = "messaging.client.id"
MESSAGING_KAFKA_MESSAGE_KEY = "messaging.kafka.message.key"
MESSAGING_KAFKA_OFFSET = "messaging.kafka.offset"
ERROR_TYPE = "error.type"

# Generative AI, https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
GEN_AI_OPERATION_NAME = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME = "gen_ai.provider.name"
PROVIDER = "vllm"  # its value
GEN_AI_CONVERSATION_ID = "gen_ai.conversation.id"
GEN_AI_AGENT_NAME = "gen_ai.agent.name"
GEN_AI_TOOL_NAME = "gen_ai.tool.name"
GEN_AI_TOOL_TYPE = "gen_ai.tool.type"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
GEN_AI_REQUEST_SEED = "gen_ai.request.seed"
GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P = "gen_ai.request.top_p"
GEN_AI_RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
GEN_AI_USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"

# Resources
SERVICE_NAME = "service.name"
SERVICE_NAMESPACE = "service.namespace"
SERVICE_INSTANCE_ID = "service.instance.id"
TRINITY_RUN_ID = "trinity.run.id"

# Reinforcement learning
RL_TASK_ID = "rl.task.id"
RL_TASK_STATUS = "rl.task.status"
RL_BATCH_ID = "rl.batch.id"
RL_BATCH_TYPE = "rl.batch.type"
RL_BATCH_STATE = "rl.batch.state"
RL_BATCH_SKIPPED = "rl.batch.skipped"
RL_ATTEMPT = "rl.attempt"
RL_ATTEMPT_STATUS = "rl.attempt.status"
RL_WORKFLOW = "rl.workflow"
RL_EXPLORER = "rl.explorer"
RL_TRAINER = "rl.trainer"
RL_MODEL = "rl.model.name"
RL_MODEL_VERSION = "rl.model.version"
RL_STEP = "rl.step"
RL_SLOT_STATE = "rl.slot.state"
RL_TRAINER_STATE = "rl.trainer.state"
RL_FACT = "rl.fact"
RL_REASON = "rl.reason"
RL_FLAW = "rl.flaw"
RL_EVAL = "rl.eval"
RL_TOKEN_KIND = "rl.token.kind"  # noqa: S105 - tokens of a language model
RL_SAMPLES = "rl.samples"
RL_QUEUE_SECONDS = "rl.engine.queue_s"
RL_REWARD_MEAN = "rl.reward.mean"
RL_WEIGHT_SYNC_EPOCH = "rl.weight_sync.epoch"
DEAD_LETTER_REASON = "trinity.dead_letter.reason"
TRINITY_DISK = "trinity.disk"
TRINITY_CERTIFICATE = "trinity.certificate"
