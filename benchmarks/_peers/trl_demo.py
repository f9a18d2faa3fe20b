"""TRL's ``GRPOTrainer`` on the demo's model, tasks and figures: a script for TRL's environment, where nothing is ours.

It writes a line of JSON for each batch: when its rewards were known (Unix seconds), their mean, its samples, and what
training on it took: by the clock, and in seconds of the processor. It ends after so many steps, or some after the
reward is above the goal; the last line says how many held-out prompts are answered.
"""

import argparse
import json
import random
import re
import time
from pathlib import Path
from typing import Any, Final

SPECIAL: Final = 4
"""Token ids below this are no words, in the toy's vocabulary."""


class EnoughError(Exception):
    """All steps are done that were asked for."""


def reward(words: list[str], answer: str, *, ended: bool) -> float:
    """Return what the demo's workflow gives (``trinity_bus.rollout.rewards.sequence_reward``)."""
    given, wanted = [*words, *(["<end>"] if ended else [])], [*answer.split(), "<end>"]
    return sum(a == b for a, b in zip(given, wanted, strict=False)) / max(len(given), len(wanted))


def number(text: str, answer: str) -> float:
    """Return what the workflow ``math`` gives where a number is asked for and little else is said."""
    return float(re.findall(r"-?\d+", text)[-1:] == [answer])


def read(path: Path) -> list[dict[str, Any]]:
    tasks = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{"prompt": task.get("messages") or task["prompt"], "answer": task["answer"]} for task in tasks]


class Judge:
    def __init__(self, tokenizer: Any, *, chat: bool) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self.last: list[float] = []
        self.__name__ = "judge"

    def __call__(self, completion_ids: list[list[int]], answer: list[str], **_: object) -> list[float]:
        self.last = [self._reward(ids, wanted) for ids, wanted in zip(completion_ids, answer, strict=True)]
        return list(self.last)

    def _reward(self, ids: list[int], wanted: str) -> float:
        if self._chat:
            return number(self._tokenizer.decode(ids, skip_special_tokens=True), wanted)
        words = self._tokenizer.convert_ids_to_tokens([token for token in ids if token >= SPECIAL])
        return reward(words, wanted, ended=self._tokenizer.eos_token_id in ids)

    def exact(self, model: Any, tasks: list[dict[str, Any]], max_tokens: int) -> float:
        import torch

        texts = [task["prompt"] for task in tasks]
        if self._chat:
            # A template writes what begins a text, too.
            texts = self._tokenizer.apply_chat_template(texts, add_generation_prompt=True, tokenize=False)
        asked = self._tokenizer(
            texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=not self._chat
        )
        ids, mask = asked["input_ids"], asked["attention_mask"]
        model.eval()
        with torch.no_grad():
            drawn = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False)
        answers = self(drawn[:, ids.shape[1] :].tolist(), [task["answer"] for task in tasks])
        return sum(value == 1.0 for value in answers) / len(answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True, help="JSON lines with prompt or messages, and answer")
    parser.add_argument("--held-out", type=Path, required=True, help="the same, that are not trained on")
    parser.add_argument("--figures", type=json.loads, required=True, help="the demo's, as JSON")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    figures: dict[str, Any] = options.figures

    import torch
    from datasets import Dataset  # type: ignore[import-not-found]  # not there where types are checked
    from peft import LoraConfig  # type: ignore[import-not-found]  # the same
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]  # the same

    if figures["threads"]:
        torch.set_num_threads(figures["threads"])
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    rows = read(options.tasks)
    judge = Judge(tokenizer, chat=not isinstance(rows[0]["prompt"], str))
    random.Random(figures["seed"]).shuffle(rows)  # noqa: S311 - an order that a seed repeats is the point
    updates, micro_batches = figures["mini_batches"], figures["generated"] // figures["micro_batch"]
    rank = figures["lora_rank"]

    def write(line: dict[str, Any]) -> None:
        with options.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")

    class Timed(GRPOTrainer):  # type: ignore[misc]  # it is not known here
        ended: tuple[float, float] | None = None
        steps_left: int = figures["steps"]
        reached = False

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            if self.ended is not None:
                self.note(time.perf_counter() - self.ended[0], time.process_time() - self.ended[1])
                if not self.steps_left:
                    raise EnoughError
            found = super()._generate_and_score_completions(inputs)
            self.ended = time.perf_counter(), time.process_time()
            self.known_at, self.mean = time.time(), self._metrics["train"]["reward"][-1]
            parts = (found[part] for part in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"))
            self.samples = [
                {"prompt": asked[there == 1].tolist(), "response": said[drawn == 1].tolist(), "reward": value}
                for asked, there, said, drawn, value in zip(*parts, judge.last, strict=True)
            ]
            if figures["goal"] is not None and self.mean >= figures["goal"] and not self.reached:
                self.reached, self.steps_left = True, min(self.steps_left, 1 + figures["steps_after"])
            return found

        def note(self, train_s: float, train_cpu_s: float) -> None:
            self.steps_left -= 1
            write(
                {
                    "rewarded_at": self.known_at,
                    "reward": self.mean,
                    "train_s": train_s,
                    "train_cpu_s": train_cpu_s,
                    "samples": self.samples,
                }
            )

    trainer = Timed(
        model=str(options.model),
        processing_class=tokenizer,
        reward_funcs=judge,
        train_dataset=Dataset.from_list(rows),
        peft_config=LoraConfig(r=rank, lora_alpha=figures["lora_alpha"], target_modules="all-linear") if rank else None,
        args=GRPOConfig(
            output_dir=str(options.out.parent / "trl"),
            use_cpu=True,
            bf16=figures["bfloat16"],
            gradient_checkpointing=False,
            per_device_train_batch_size=figures["micro_batch"],
            gradient_accumulation_steps=micro_batches // updates,
            steps_per_generation=micro_batches,
            num_generations=figures["samples"],
            # One more than is done at most: what is not begun is not noted.
            max_steps=(figures["decay_steps"] + 1) * updates,
            max_completion_length=figures["max_tokens"],
            temperature=figures["temperature"],
            beta=0.0,
            epsilon=0.2,
            epsilon_high=0.28,
            loss_type="dapo",
            scale_rewards="group",
            entropy_coef=figures["entropy_coef"],
            learning_rate=figures["learning_rate"],
            lr_scheduler_type="linear",
            warmup_steps=figures["warmup_steps"] * updates,
            adam_beta1=0.9,
            adam_beta2=figures["adam_beta2"],
            weight_decay=0.0,
            max_grad_norm=1.0,
            seed=figures["seed"],
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
    )
    try:
        trainer.train()
    except EnoughError:
        write({"exact": judge.exact(trainer.model, read(options.held_out), figures["max_tokens"])})


if __name__ == "__main__":
    main()
