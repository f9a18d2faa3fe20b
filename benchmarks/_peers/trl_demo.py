"""TRL's ``GRPOTrainer`` on the demo's model, tasks and figures: a script for TRL's environment, where nothing is ours.

It writes a line of JSON for each batch: when its rewards were known (Unix seconds), their mean, and what generating and
scoring it, and training on it, took: by the clock, and in seconds of the processor. It ends some steps after the reward
is above the goal.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any, Final

SPECIAL: Final = 4
"""Token ids below this are no words."""


def reward(words: list[str], answer: str, *, ended: bool) -> float:
    """Return what the demo's workflow gives (``trinity_bus.rollout.rewards.sequence_reward``)."""
    given, wanted = [*words, *(["<end>"] if ended else [])], [*answer.split(), "<end>"]
    return sum(a == b for a, b in zip(given, wanted, strict=False)) / max(len(given), len(wanted))


def main() -> None:
    """Train until the goal is reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True, help="JSON lines with prompt and answer")
    parser.add_argument("--figures", type=json.loads, required=True, help="the demo's, as JSON")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    figures: dict[str, Any] = options.figures

    import torch
    from datasets import Dataset  # type: ignore[import-not-found]  # not there where types are checked
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]  # the same

    if figures["threads"]:
        torch.set_num_threads(figures["threads"])
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tasks = [json.loads(line) for line in options.tasks.read_text(encoding="utf-8").splitlines()]
    rows = [{"prompt": task["prompt"], "answer": task["answer"]} for task in tasks]
    random.Random(figures["seed"]).shuffle(rows)  # noqa: S311 - an order that a seed repeats is the point
    updates, samples = figures["mini_batches"], figures["tasks"] * figures["samples"]

    def of_words(completion_ids: list[list[int]], answer: list[str], **_: object) -> list[float]:
        return [
            reward(
                tokenizer.convert_ids_to_tokens([token for token in ids if token >= SPECIAL]),
                wanted,
                ended=tokenizer.eos_token_id in ids,
            )
            for ids, wanted in zip(completion_ids, answer, strict=True)
        ]

    class Timed(GRPOTrainer):  # type: ignore[misc]  # it is not known here
        """Notes when each batch is begun and when its rewards are known."""

        ended: tuple[float, float] | None = None
        spent: tuple[float, float] | None = None
        steps_left: int | None = None

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            began = time.perf_counter(), time.process_time()
            if self.ended is not None:
                self.note(*(now - then for now, then in zip(began, self.ended, strict=True)))
            found = super()._generate_and_score_completions(inputs)
            self.ended = time.perf_counter(), time.process_time()
            self.spent = self.ended[0] - began[0], self.ended[1] - began[1]
            self.known_at, self.mean = time.time(), self._metrics["train"]["reward"][-1]
            if self.mean >= figures["goal"] and self.steps_left is None:
                self.steps_left = figures["steps_after"]
            return found

        def note(self, train_s: float, train_cpu_s: float) -> None:
            assert self.spent is not None
            line = {
                "rewarded_at": self.known_at,
                "reward": self.mean,
                "generate_s": self.spent[0],
                "generate_cpu_s": self.spent[1],
                "train_s": train_s,
                "train_cpu_s": train_cpu_s,
            }
            with options.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
            if self.steps_left is not None:
                self.steps_left -= 1
                self.control.should_training_stop = self.steps_left < 0

    trainer = Timed(
        model=str(options.model),
        processing_class=tokenizer,
        reward_funcs=of_words,
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=str(options.out.parent / "trl"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=samples // updates,
            steps_per_generation=updates,
            num_generations=figures["samples"],
            max_steps=figures["steps"] * updates,
            max_completion_length=figures["max_tokens"],
            temperature=1.0,
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
    trainer.train()


if __name__ == "__main__":
    main()
