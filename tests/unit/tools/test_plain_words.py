import pytest

from tools.plain_words import faults, prose, texts


def test_pages_and_help_texts_are_looked_at() -> None:
    read = {path for path, _, _ in texts()}
    assert {"README.md", "docs/architecture.md", "docs/decisions/0001-a-coordinator-dispatches.md"} <= read
    assert {"recipes/gsm8k/README.md", "workers/cli/app.py", "workers/cli/training/versions.py"} <= read
    assert any("Abort a batch." in text for path, _, text in texts() if path == "workers/cli/app.py")


@pytest.mark.parametrize(
    "sentence",
    [
        "A version is told of.",
        "The coordinator hands a task out.",
        "What the model said is kept.",
        "Training goes on.",
        "It is started anew.",
        "An explorer of whom nothing is known.",
        "One that is alone gets all.",
        "Which batches are under way?",
        "1.4 thousand million parameters",
        "<<<<<<< HEAD",
    ],
)
def test_an_old_word_is_seen(sentence: str) -> None:
    assert {line for line, _, _ in faults(f"Fine.\n{sentence}")} == {2}


@pytest.mark.parametrize(
    "sentence",
    [
        "One thought a sentence; the settings tell a reader nothing more.",
        "A handout is given to one reader at a time.",
        "It gives up after six starts; a pass over memory is slow.",
        "The setting `told` and ```said``` are names; [a link](what/is/told/of.md) leads there.",
        "```text\nit goes on\n```",
    ],
)
def test_other_words_are_left_alone(sentence: str) -> None:
    assert list(faults(sentence)) == []


def test_lines_keep_their_numbers() -> None:
    page = "a\n```text\nb\n```\nc `d\ne` f"
    assert prose(page).count("\n") == page.count("\n")
