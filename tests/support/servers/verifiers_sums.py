"""A taskset of ``verifiers`` with the harness that plays it, in this process: sums, asked twice at most."""

from collections.abc import Iterator
from typing import Any

import openai
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)  # type: ignore[untyped-decorator]
    async def right(self, task: SumData, trace: Any) -> float:
        if trace.last_reply == "break":
            raise ValueError("the judge is broken")
        return float(trace.last_reply == task.answer)

    @vf.metric  # type: ignore[untyped-decorator]
    async def asked(self, trace: Any) -> float:
        return float(trace.num_turns)


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> Iterator[SumTask]:
        for number in range(3):
            data = SumData(prompt=f"{number} + 1?", answer=str(number + 1))
            yield SumTask(data, self.config.task)


class AskingConfig(vf.HarnessConfig):
    pass


class Asking(vf.Harness[AskingConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, *given: Any) -> Any:
        ctx, _, _, endpoint, secret, _, data = given
        messages = [{"role": "user", "content": data.prompt}]
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            for again in ("Sure?", ""):
                said = await client.chat.completions.create(model=ctx.model, messages=messages)  # type: ignore[arg-type]
                text = said.choices[0].message.content or ""
                if text == data.answer or not again:
                    break
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": again}]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["Asking", "Sums"]
