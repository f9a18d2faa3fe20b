"""The inference engine: vLLM behind token ids, logprobs and versions.

::

    NEW --start--> SERVING --sync_weights--> SERVING (another version)
                     |--stop--> STOPPED
                     +--its process died, or weights torn--> DEAD

While SERVING, any number of ``generate`` calls run at once; a transfer runs beside them and stops them only while the
new weights are loaded. A cancelled ``generate`` aborts its request in the engine.

Failures: see ``errors``. Once DEAD, every call raises ``EngineDeadError``; ``wait_dead`` tells whoever waits for it.
"""

import asyncio
import functools
import itertools
import logging
import multiprocessing
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from schemas.groups.trainable import Bounds
from schemas.model_version import Member, ModelVersion
from schemas.sampling import Sampling
from trinity_bus import awake
from trinity_bus.chat.messages import Completion
from trinity_bus.config import ExplorerSettings, SynchronizerSettings
from trinity_bus.inference.completion import Watch, completion_of, scores_of
from trinity_bus.inference.concurrency import EngineLoad, Steps
from trinity_bus.inference.errors import (
    EngineDeadError,
    EngineError,
    EngineStartError,
    GenerationError,
    RequestRefusedError,
)
from trinity_bus.inference.launch import cause_of_death, launch, private_sockets
from trinity_bus.inference.sampling import MOST_KEPT, SCORING, sampling_arguments, vllm_parameters
from trinity_bus.inference.tracing import TokenCounter, answered, request_span
from trinity_bus.inference.weight_sync import ControlClient, SyncOutcome
from trinity_bus.runtime.memory import unfreeze_gc
from trinity_bus.runtime.service import in_daemon_thread, unless_small
from trinity_bus.telemetry import conventions as names
from trinity_bus.weights.transport import source_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM

_log = logging.getLogger(__name__)

_WHOLE = ("stop", "length")  # why a response ends that is not broken off
_HEALTH_S = 0.2  # how often the engine's process is looked at
_STOP_S = 5.0  # how long the engine's process may take to end by itself
_ENDING_S = 2.0  # how long a process that lets nobody hear of it any more may take to be gone


class InferenceEngine:
    """One vLLM engine in a process of its own; ``sync`` says how it takes versions, and how long each wait may be."""

    tells_versions = True

    def __init__(self, settings: ExplorerSettings, sync: SynchronizerSettings | None = None) -> None:
        self._settings = settings
        self._sync = sync or SynchronizerSettings()
        self._llm: AsyncLLM | None = None
        self._control: ControlClient | None = None
        self._counter = TokenCounter()
        self._numbers = itertools.count()
        self._syncing = asyncio.Lock()
        self._dead: EngineDeadError | None = None
        self._processes: list[BaseProcess] = []
        self._config: VllmConfig | None = None  # that it was started with
        self._trained_in: str | None = None  # the type in which the trainer computes, once that is known
        # That it serves; -1 before it serves one that is known
        self._first_version = self.model_version = settings.first_version
        # Versions, since the start; after going back to one its number may come again, with other weights
        self._taken = 0

    @property
    def model_name(self) -> str:
        """What its model is called in traces: the last part of its path."""
        return Path(self._settings.model_path or "").name

    @property
    def bounds(self) -> Bounds:
        model = self.llm.model_config
        positions = getattr(model.hf_text_config, "max_position_embeddings", model.max_model_len)
        return Bounds(self._vocabulary, positions)

    @property
    def _vocabulary(self) -> int:
        return int(self.llm.model_config.get_vocab_size())

    @property
    def dtype(self) -> str:
        return str(self.llm.model_config.dtype).removeprefix("torch.")

    @property
    def tokens_generated(self) -> int:
        return self._counter.generated

    @property
    def steps(self) -> Steps:
        return self._counter.steps

    @property
    def tokens_cached(self) -> int:
        """Tokens of prompts that were found in the prefix cache, and not computed again, since the start."""
        return self._counter.cached

    @functools.cached_property
    def _adapter(self) -> "LoRARequest | None":
        if not self._settings.serves_adapter:
            return None
        from trinity_bus.weights.vllm.adapter import REQUEST

        return REQUEST

    @property
    def load(self) -> EngineLoad:
        counter = self._counter
        return EngineLoad(counter.kv_usage, counter.running, counter.waiting, counter.preempted, self.model_version)

    @property
    def llm(self) -> "AsyncLLM":
        """VLLM's own engine, for what this class does not offer."""
        if self._dead is not None:
            raise self._dead
        if self._llm is None:
            raise EngineError("the engine is not started, or was stopped")
        return self._llm

    async def start(self) -> None:
        """Start the engine's process and load the model; ConfigError, EngineStartError."""
        with private_sockets():
            await self._start()

    async def _start(self) -> None:
        limit = self._settings.start_timeout_s
        before = set(multiprocessing.active_children())
        abandoned = threading.Event()

        def start() -> None:
            self._llm = launch(self._settings, self._counter, abandoned)

        try:
            async with awake.timeout(limit):
                await in_daemon_thread(start, name="start-engine")
        except TimeoutError as error:
            raise EngineStartError(f"vLLM did not start within {limit:g} s") from error
        finally:
            abandoned.set()
            self._processes = [child for child in multiprocessing.active_children() if child not in before]
            if self._llm is None:
                # At exit, Python would wait for them.
                for child in self._processes:
                    child.kill()
        try:
            self._config = self.llm.vllm_config
            self._control = await ControlClient.open(self.llm)
        # vLLM passes on what was raised in its processes as a bare Exception.
        except Exception as error:
            raise EngineStartError(f"vLLM's workers cannot be reached for weights: {error}") from error

    async def stop(self) -> None:
        """End the engine's process. Requests that still run fail."""
        llm, self._llm = self._llm, None
        control, self._control = self._control, None
        if control is not None:
            await control.close()
        if llm is not None:
            await asyncio.to_thread(llm.shutdown, _STOP_S)
            # It closes its sockets, and leaves their context, with a thread and files of its own, to whoever collects.
            llm.engine_core.resources.ctx.destroy(linger=0)
            del llm
            # vLLM's objects refer to each other in circles; at the end of the interpreter they would complain.
            unfreeze_gc()

    async def wait_dead(self) -> EngineDeadError:
        """Return as soon as the engine is dead, with the reason."""
        while self._dead is None:
            if self._llm is not None and self._llm.errored:
                return await self._gone()
            await asyncio.sleep(_HEALTH_S)
        return self._dead

    async def _gone(self) -> EngineDeadError:
        for process in self._processes:
            await asyncio.to_thread(process.join, _ENDING_S)
        codes = [process.exitcode for process in self._processes if process.exitcode is not None]
        self._dead = EngineDeadError(f"the engine's process is gone{cause_of_death(codes, self._config)}")
        return self._dead

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        n: int = 1,
        traceparent: str | None = None,
        *,
        watch: Watch | None = None,
        trained: bool = False,
    ) -> list[Completion]:
        """Draw ``n`` responses to a prompt of token ids; absent fields of ``sampling`` take the explorer's defaults.

        Their logprobs are those of the distribution that each token was drawn from; where they are to be ``trained``,
        it is told which tokens that has. RequestRefusedError: the prompt is too long, or a parameter out of range.
        GenerationError: a response was begun and not finished. EngineDeadError.
        """
        arguments = self._arguments(sampling, n, trained=trained)
        most, number = self._most_kept(arguments), str(next(self._numbers))
        if watch is not None:
            watch(functools.partial(self._so_far, number, [0] * n, most))
        with request_span(self.model_name, len(prompt_token_ids), arguments, traceparent) as span:
            final = await self._last(prompt_token_ids, arguments, number)
            if final is None or len(final.outputs) != n:
                raise GenerationError(f"asked for {n} responses, got {0 if final is None else len(final.outputs)}")
            answered(span, final)
        ordered = sorted(final.outputs, key=lambda output: output.index)
        routed_prompt = len(prompt_token_ids) if self._settings.capture_routes else None
        return [await self._converted(one, routed_prompt, most_kept=most) for one in ordered]

    async def stream(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        n: int = 1,
        traceparent: str | None = None,
        *,
        trained: bool = False,
    ) -> AsyncGenerator[tuple[int, Completion]]:
        """Draw ``n`` responses to a prompt; yield which of them has got more, and what: see ``generate``."""
        arguments = self._arguments(sampling, n, trained=trained)
        with request_span(self.model_name, len(prompt_token_ids), arguments, traceparent) as span:
            unfinished = n
            lengths, most = [len(prompt_token_ids)] * n, self._most_kept(arguments)
            number = str(next(self._numbers))
            async with aclosing(self._outputs(prompt_token_ids, arguments, number, stream=True)) as outputs:
                async for output in outputs:
                    for response in output.outputs:
                        before = lengths[response.index] if self._settings.capture_routes else None
                        more = await self._converted(response, before, partial=True, most_kept=most)
                        lengths[response.index] += len(more.token_ids)
                        unfinished -= more.finish_reason != ""
                        yield response.index, more
            span.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, sum(lengths) - n * len(prompt_token_ids))
            if unfinished:
                raise GenerationError(f"asked for {n} responses, {unfinished} were not finished")

    def _so_far(self, number: str, told: list[int], most_kept: int) -> list[Completion]:
        # Of what vLLM has of them: a stream would cost time for each token.
        drawn = [Completion() for _ in told]
        if self._llm is None:
            return drawn
        processor = self._llm.output_processor
        found: dict[int, Any] = {}
        for name in processor.external_req_ids.get(number, ()):
            if (state := processor.request_states.get(name)) is not None:
                if state.parent_req is not None:
                    ended = enumerate(state.parent_req.output_aggregator)
                    found |= {i: one for i, one in ended if one is not None and one.finish_reason in _WHOLE}
                found[state.request_index] = SimpleNamespace(
                    token_ids=state.detokenizer.output_token_ids,
                    logprobs=state.logprobs_processor.logprobs,
                    finish_reason=None,
                    weight_versions=state._weight_version_spans(),  # noqa: SLF001
                )
        for index, one in found.items():
            start, told[index] = told[index], len(one.token_ids)
            new = SimpleNamespace(
                token_ids=one.token_ids[start:],
                logprobs=one.logprobs[start:],
                finish_reason=one.finish_reason,
                weight_versions=one.weight_versions,
            )
            drawn[index] = completion_of(new, self._first_version, partial=True, most_kept=most_kept)
        return drawn

    async def score(self, token_ids: Sequence[int], start: int) -> list[float]:
        """Return how likely each token of a sequence is after those before it, from ``start`` on, at temperature 1.

        The sequence is at least one token shorter than ``explorer.max_model_len``; ``start`` is at least 1.
        """
        if not 1 <= start < len(token_ids):
            raise RequestRefusedError(f"there is nothing to score from {start} on in {len(token_ids)} tokens")
        with request_span(self.model_name, len(token_ids), SCORING, None):
            return scores_of(await self._last(token_ids, SCORING, str(next(self._numbers))), token_ids)[start - 1 :]

    def _arguments(self, sampling: Sampling, n: int, *, trained: bool) -> dict[str, Any]:
        own = self._settings
        most = min(MOST_KEPT, self._vocabulary) if trained else 0
        return sampling_arguments(sampling, n, temperature=own.temperature, max_tokens=own.max_tokens, most_kept=most)

    def _most_kept(self, arguments: Mapping[str, Any]) -> int:
        # One of those that are asked about was not kept, unless there are no others.
        asked: int = arguments["logprobs"]
        return asked if asked == self._vocabulary else asked - 1

    async def _converted(
        self, output: Any, routed_before: int | None, *, partial: bool = False, most_kept: int
    ) -> Completion:
        convert = functools.partial(completion_of, partial=partial, most_kept=most_kept)
        size = len(output.token_ids) * most_kept
        return await unless_small(size, convert, output, self._first_version, routed_before)

    async def _last(self, prompt_token_ids: Sequence[int], arguments: Mapping[str, Any], number: str) -> Any:
        final = None
        async with aclosing(self._outputs(prompt_token_ids, arguments, number)) as outputs:
            async for output in outputs:
                final = output
        return final

    async def _outputs(
        self, prompt_token_ids: Sequence[int], arguments: Mapping[str, Any], number: str, *, stream: bool = False
    ) -> AsyncGenerator[Any]:
        # One with all responses, or what is new of some, again and again.
        from vllm.exceptions import VLLMClientError
        from vllm.inputs import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError
        from vllm.v1.engine.exceptions import EngineGenerateError

        llm = self.llm
        # Prefixes are found by those alone who ask with the same salt.
        salt = str(self._taken) if self._settings.caches == "kept" else None
        try:
            parameters = vllm_parameters(arguments, stream=stream)
            prompt = tokens_input(list(prompt_token_ids), cache_salt=salt)
            outputs = llm.generate(prompt, parameters, number, lora_request=self._adapter)
            async with aclosing(outputs):
                async for output in outputs:
                    yield output
        except VllmEngineDeadError as error:
            raise await self._gone() from error
        except EngineGenerateError as error:
            raise GenerationError(f"the engine failed on a request: {error.__cause__ or error}") from error
        except (VLLMClientError, ValueError) as error:
            raise RequestRefusedError(str(error)) from error

    def _compare_types(self, trained_in: str | None) -> None:
        # Said once.
        if trained_in in (None, self._trained_in):
            return
        self._trained_in = trained_in
        if trained_in != self.dtype:
            _log.warning(
                "the trainer computes in %s and this engine in %s: what is drawn is off-policy by the difference, "
                "which the trainer tells as mismatch_k3; set mesh.dtype to a type that both have",
                trained_in,
                self.dtype,
            )

    async def sync_weights(self, announced: ModelVersion, member: Member) -> SyncOutcome:
        """Take over a version, while generation goes on; raises as ``ControlClient.sync``."""
        async with self._syncing:
            self._compare_types(announced.dtype)
            llm, control = self.llm, self._control
            assert control is not None  # noqa: S101 - it is there as long as the engine is
            sync = self._sync
            source = source_of(
                announced,
                member.explorer,
                sync.sync_timeout_s,
                sync.tls_cafile,
                fan_out=sync.sync_fan_out,
                object_url=sync.object_url,
            )
            try:
                outcome = await control.sync(llm, source, keep_caches=self._settings.caches == "kept")
            except EngineDeadError as error:
                self._dead = error
                if self._llm is not None and self._llm.errored:
                    raise await self._gone() from error
                raise
            self.model_version = announced.version
            self._taken += 1
            return outcome
