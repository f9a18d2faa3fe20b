"""Which requests a broker knows: it does not say of which release it is."""

from aiokafka.admin import AIOKafkaAdminClient

from trinity_bus.bus.connection import kafka_errors
from trinity_bus.bus.internals import ApiVersionRequest, ask


async def latest_versions(admin: AIOKafkaAdminClient) -> dict[int, int]:
    """Return the number of each request that a broker knows, with its latest version."""
    with kafka_errors("ask which requests are known"):
        answer = await ask(admin, ApiVersionRequest())
    return {key: latest for key, _, latest in answer.api_versions}
