"""What a runner asks of engines, served: by its explorer's own, and by those of other pools."""

from collections.abc import Sequence

from schemas import Sampling
from schemas.vectors import FLOAT32, INT32
from trinity_bus.inference.completion import Completion
from trinity_bus.runners import messages
from trinity_bus.runners.engine import ExplorerEngine, PoolEngines
from trinity_bus.runners.messages import Chat, Chatted, Completions, Generate, Score, Scored


async def serve(
    asked: Generate | Chat | Score, engine: ExplorerEngine, pools: PoolEngines
) -> Completions | Chatted | Scored:
    """Return the answer to a request; raises ProtocolError, ValidationError, or whatever an engine raises."""
    match asked:
        case Generate(job, request):
            prompt = messages.unpack_vector(asked.prompt, INT32).tolist()
            sampling = Sampling.model_validate_json(asked.sampling)
            drawn: Sequence[Completion]
            if asked.pool is None:
                drawn = await engine.generate(prompt, sampling, asked.n, asked.traceparent)
            else:
                drawn = await pools.generate(asked.pool, prompt, sampling, asked.n)
            return messages.pack_completions(job, request, drawn)
        case Chat(job, request):
            how = Sampling.model_validate_json(asked.sampling)
            return Chatted(job, request, await pools.chat(asked.pool, asked.messages, how))
        case Score(job, request):
            tokens = messages.unpack_vector(asked.tokens, INT32).tolist()
            logprobs = await pools.score(asked.pool, tokens, asked.start)
            return Scored(job, request, messages.pack_vector(logprobs, FLOAT32))
