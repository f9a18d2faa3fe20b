import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from schemas import BatchLifecycleState, Position, Task
from schemas.batch import ResultPart
from schemas.step import LeftOut, StepGroup
from schemas.topics import DEAD_LETTERS, EXPERIENCES
from tests.support.chat.models import FAMILIES, tokenizer_of
from tests.support.console.indexed import indexed, texts
from tests.support.fakes.announcements import announced
from tests.support.fakes.log_records import LogRecords, group
from tests.support.fakes.mesh_records import (
    batch,
    dispatch,
    explorer_beat,
    published_version,
    rollout_finished,
    step_trained,
    task_result,
    weights_synced,
)
from tests.support.fakes.steps import begun_step
from tests.support.narrowing import some
from trinity_bus.bus import Undecodable
from trinity_bus.console.index.group_rows import load_texts
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.store import Store
from trinity_bus.console.index.terms import (
    PageAsk,
    PassedOver,
    QuestionError,
    SampleFilter,
    SamplePlace,
    StepName,
    StoreBusyError,
    StoreError,
)

TODAY = 1_700_000_000.0


@pytest.fixture
def log() -> LogRecords:
    """A task is sent, run, counted and trained on, as version 1 of the model; another one came to nothing."""
    log = LogRecords()
    task = Task(task_id="copy-1", workflow="copy", prompt="copy three digits", answer="4", producer="me")
    log.add(task, 100)
    log.add(batch("train-1", BatchLifecycleState.RUNNING, expected_task_count=1), 101)
    order = dispatch(task=task, attempt=1, batch_id="train-1", repeat_times=3)
    log.add(order, 102)
    log.add(group("copy-1", [0.0, 1.0, 0.5]), 103, partition=2, traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")
    done: dict[str, Any] = {"batch_id": "train-1", "status": "completed", "completed_runs": 3, "total_runs": 3}
    log.add(rollout_finished("copy-1", samples=3, seconds=1, **done), 104)
    log.add(task_result("copy-1", **done), 105)
    metrics = {"rollout/reward/mean": 0.5}
    log.add(batch("train-1", expected_task_count=1, metrics=metrics), 106)
    part = ResultPart(attempt=1, samples=3, position=Position(partition=2, offset=0))
    groups = [StepGroup(task_id="copy-1", parts=[part])]
    left_out = [LeftOut(task_id="copy-1", reason="too_long", samples=[2], detail="9 tokens")]
    log.add(begun_step(1, run="r", batch_id="train-1", groups=groups, left_out=left_out), 107)
    log.add(step_trained(1, metrics={"loss": 0.25, "entropy": math.nan}, batch_id="train-1", seconds=2), 108)
    log.add(published_version(1, batch_id="train-1", checkpoint="/ckpt/1"), 109)
    log.add(announced(1), 109)
    log.add(weights_synced("explorer-0", 1), 110)
    log.add(explorer_beat(slots=4, model_version=0, tokens_generated=100), 60)
    log.add(explorer_beat(slots=4, model_version=1, tokens_generated=700), 120)
    reason = (("dlq.reason", b"no_workflow"), ("dlq.topic", b"tasks"), ("dlq.offset", b"7"), ("dlq.partition", b"3"))
    log.add(b"{}", 111, topic=DEAD_LETTERS, key="copy-2", raw=b"{}", raw_key=b"copy-2", headers=reason)
    return log


def test_a_step_leads_to_its_samples_and_a_sample_to_what_became_of_it(index: Index) -> None:
    (step,) = index.steps().rows
    assert (step.step, step.batch_id, step.run, step.samples, step.left_out) == (1, "train-1", "r", 2, 1)
    assert (step.begun_at, step.trained_at, step.seconds, step.reward) == (107, 108, 2, 0.5)
    rows = index.samples(SampleFilter(step=1)).rows
    assert [(row.place.number, row.reward, row.response) for row in rows] == [
        (0, 0.0, "the answer"),
        (1, 1.0, "the is"),
        (2, 0.5, "the four"),
    ]
    assert {(row.task_id, row.logprob, row.at, row.version_min) for row in rows} == {("copy-1", -1.0, 103, 1)}
    sample = some(index.sample(SamplePlace.parse(str(rows[2].place))))
    assert [(fate.step.step, fate.left_out, fate.detail) for fate in sample.fates] == [(1, "too_long", "9 tokens")]
    assert (sample.group.trained_in, sample.group.trace_id, sample.group.prompt) == (
        [StepName(1, "trainer-0", None)],
        "ab" * 16,
        "copy three digits",
    )
    whole = some(index.step(1))
    assert (whole.metrics, whole.left_out[0].samples) == ({"loss": 0.25}, [2])


def test_a_group_shows_the_spread_of_its_rewards_and_a_histogram_counts_every_sample_once(index: Index) -> None:
    (row,) = index.groups(SampleFilter(batch_id="train-1")).rows
    assert (row.partition, row.offset, row.samples, row.response_tokens) == (2, 0, 3, 6)
    assert (row.reward_mean, row.reward_min, row.reward_max) == (0.5, 0.0, 1.0)
    assert index.groups(SampleFilter(teaches_nothing=True)).rows == []
    found = index.reward_histogram(bins=2)
    assert [(bar.low, bar.high, bar.count) for bar in found.bins] == [(0, 0.5, 1), (0.5, 1, 2)]
    assert (found.samples, found.without_reward, found.newest_only) == (3, 0, False)


def test_a_version_leads_back_to_its_batch_and_out_to_its_explorers(index: Index) -> None:
    (version,) = index.versions().rows
    record = version.record
    assert (record.batch_id, record.checkpoint, version.announced) == ("train-1", "/ckpt/1", True)
    assert (record.metrics, version.skipped, version.synced) == ({}, [], 1)
    assert [(sync.explorer, sync.version, sync.ok) for sync in index.syncs(1)] == [("explorer-0", 1, True)]
    assert index.syncs(2) == []


def test_a_task_is_followed_from_its_send_to_its_step(index: Index) -> None:
    task = some(index.task("copy-1"))
    assert [event.kind for event in task.events] == ["sent", "dispatched", "experience", "finished", "result", "begun"]
    assert (task.status, task.batch_id, task.producer, task.answer) == ("completed", "train-1", "me", "4")
    assert task.events[1].text == "runs 0 to 2"
    lost = some(index.task("copy-2"))
    assert [(event.kind, str(event.place)) for event in lost.events] == [("dead_letter", "dead-letters/0@0")]
    assert index.task("copy-3") is None


def test_an_earlier_moment_is_what_it_was_then(index: Index) -> None:
    assert [row.record.state for row in index.batches().rows] == ["finalized"]
    assert [(row.record.state, row.trained_as) for row in index.batches(until=105).rows] == [("running", None)]
    assert index.batches(until=100).rows == []
    assert (index.steps(until=106.9).rows, index.steps(until=107.5).rows[0].trained_at) == ([], None)
    assert index.samples(until=102.9).rows == []
    assert index.versions(until=109).rows[0].synced == 0
    assert index.task("copy-2", until=110) is None
    assert (index.fleet(until=70)[0].version, index.fleet()[0].version) == (0, 1)
    assert (index.extent(until=119).samples, index.extent(until=59).samples) == (3, 0)


def test_samples_are_found_by_what_is_in_them(index: Index) -> None:
    def numbers(**wanted: Any) -> list[int]:
        return [row.place.number for row in index.samples(SampleFilter(**wanted)).rows]

    assert numbers(text="ANSWER") == [0]
    assert numbers(text='"the is"') == [1]
    assert numbers(text='"is the"') == []
    # Of the prompt, which is all samples', and in a response as well: each once.
    assert numbers(text="the") == [0, 1, 2]
    assert numbers(text="three copy") == [0, 1, 2]
    assert numbers(reward_min=0.4, reward_max=0.9) == [2]
    assert numbers(reward_min=0.4) == [1, 2]
    assert numbers(version_min=1, version_max=1) == [0, 1, 2]
    assert numbers(version_min=2) == []
    assert numbers(task_id="copy-1", reward_max=0.1) == [0]
    assert numbers(text="the", reward_min=0.4) == [1, 2]


def test_a_text_without_words_is_no_question_and_no_operator_is_understood(index: Index) -> None:
    for text in ("...", "", "x" * 201):
        with pytest.raises(QuestionError):
            index.samples(SampleFilter(text=text))
    for text in ('NOT "', "a AND", "words:x", "x* ^y", '"";drop', "NEAR(a b)", "{a}", "\0a"):
        assert index.samples(SampleFilter(text=text)).rows == [], text


def test_metrics_are_charted_by_step_and_time(index: Index) -> None:
    assert {"loss", "rollout/reward/mean"} <= set(index.metric_names())
    assert "entropy" not in index.metric_names()
    by_step, by_time = index.metrics(["loss"])["loss"], index.metrics(["loss"], by="time")["loss"]
    assert [(point.x, point.value) for point in (*by_step, *by_time)] == [(1, 0.25), (108, 0.25)]
    assert index.metrics(["loss"], until=107) == {"loss": []}


def test_dead_letters_are_filtered_and_explorers_show_what_they_did_since_the_minute_before(index: Index) -> None:
    (row,) = index.dead_letters(reason="no_workflow", text="COPY").rows
    assert (row.source, row.key, row.detail) == ("tasks/3@7", "copy-2", "")
    assert index.dead_letters(reason="other").rows == []
    (explorer,) = index.fleet()
    assert (explorer.tokens_per_s, explorer.slots) == (10, 4)


def test_pages_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    log = LogRecords()
    # Partitions are read one after the other; and more come in one millisecond than it has numbers.
    for partition in (0, 1):
        for number in range(150):
            at = TODAY if number < 140 else TODAY + number - partition / 2
            log.add(group(f"t-{partition}-{number}", [0.5, 1.0], version=number), at, partition=partition)
    with indexed(tmp_path, log) as index:
        for wanted in (SampleFilter(), SampleFilter(reward_min=0.9), SampleFilter(version_max=145)):
            page = index.samples(wanted, PageAsk(limit=7))
            rows = [*page.rows]
            while page.after is not None:
                page = index.samples(wanted, PageAsk(limit=7, after=page.after))
                rows += page.rows
            expected = {SampleFilter(): 600, SampleFilter(reward_min=0.9): 300, SampleFilter(version_max=145): 584}
            assert len({row.place for row in rows}) == len(rows) == expected[wanted]
            assert [row.at for row in rows] == sorted((row.at for row in rows), reverse=True)
        assert all(row.response is None for row in rows)
        assert index.groups(SampleFilter(), PageAsk(limit=3)).rows[0].task_id == "t-0-149"


def test_a_search_whose_time_is_up_says_where_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.console.index.queries.samples._WINDOW", 10)
    log = LogRecords()
    for number in range(35):
        log.add(group(f"t-{number}", [0.5], version=number), 100.0 + number)
    with indexed(tmp_path, log, search_s=0) as index:
        pages = [index.samples(SampleFilter(version_max=0))]
        while pages[-1].after is not None:
            pages.append(index.samples(SampleFilter(version_max=0), PageAsk(after=pages[-1].after)))
    assert [[row.task_id for row in page.rows] for page in pages] == [[], [], [], ["t-0"]]
    assert [page.searched_back_to for page in pages] == [124, 114, 104, None]


@pytest.mark.parametrize(
    "asked",
    [{"limit": 0}, {"limit": 501}, {"after": "-1"}, {"after": "1; drop"}, {"after": "9" * 19}, {"after": "9" * 30}],
)
def test_no_page_is_too_large_and_none_is_made_up(index: Index, asked: dict[str, Any]) -> None:
    for question in (index.samples, index.groups):
        with pytest.raises(QuestionError):
            question(SampleFilter(), PageAsk(**asked))


def test_what_cannot_be_read_is_counted_and_passed_over(store: Store, index: Index) -> None:
    log = LogRecords()
    log.add(Undecodable(b"x", "truncated", "no bytes at all"), 200, topic=EXPERIENCES, partition=2)
    log.add(None, 200, topic=EXPERIENCES, partition=2)
    store.take(*log.take())
    assert index.passed_over() == PassedOver({"experiences": 1}, 0)
    store.move({("tasks", 0): 99}, lost=1200)
    assert index.passed_over().line == (
        "Records that are not shown: 1 of experiences could not be read, 1,200 were deleted by retention before they "
        "were read."
    )
    assert index.extent().samples == 3


def test_hostile_texts_and_numbers_are_kept_as_far_as_they_can_be(store: Store, index: Index) -> None:
    log = LogRecords()
    log.add(Task(task_id="odd", workflow="copy", prompt="a \0 letter"), 300)
    log.add(group("odd", [math.inf, -math.inf, math.nan], attempt=1 << 70), 301, partition=7)
    store.take(*log.take())
    task = some(index.task("odd"))
    assert task.prompt == "a \0 letter"
    assert [row.reward for row in index.samples(SampleFilter(task_id="odd")).rows] == [math.inf, -math.inf, None]
    assert index.reward_histogram(SampleFilter(task_id="odd")).without_reward == 3


def test_what_is_held_is_written_with_what_comes_next_or_not_at_all(tmp_path: Path) -> None:
    log = LogRecords()
    with Store(tmp_path, texts=texts) as store, Index(tmp_path) as index:
        log.add(group("t-0", [0.0, 1.0]), 100)
        store.take(*log.take(), hold=True)
        assert (store.holds, index.extent().samples) == (True, 0)
        log.add(group("t-1", [0.5]), 101)
        store.take(*log.take())
        assert (store.holds, index.extent().samples) == (False, 3)
        log.add(group("t-2", [0.5]), 102)
        store.take(*log.take(), hold=True)
    with Store(tmp_path, texts=texts) as store, Index(tmp_path) as index:
        assert (store.positions, index.extent().samples) == ({("experiences", 0): 2}, 3)


def test_a_sample_that_is_no_number_spoils_no_other(tmp_path: Path) -> None:
    log = LogRecords()
    log.add(replace(group("t-0", [0.5]), logprobs=np.full(2, math.nan, np.float32)), 100)
    log.add(group("t-1", [0.0, 1.0]), 101)
    with indexed(tmp_path, log, texts) as index:
        assert [row.logprob for row in index.samples().rows] == [-1.0, -1.0, None]


def test_a_store_is_of_one_console_and_emptied_for_another_log(store: Store, index: Index) -> None:
    with pytest.raises(StoreBusyError, match=str(store.folder)):
        Store(store.folder, texts=texts)
    store.belong_to({"tasks": "cluster/1", "steps": "cluster/2"})
    assert store.is_of({"tasks": "cluster/1", "steps": "cluster/2", "batches": "cluster/3"})
    assert not store.is_of({"tasks": "cluster/9"})
    store.begin_anew()
    assert (store.positions, index.extent().samples, index.samples().rows) == ({}, 0, [])
    assert store.is_of({"tasks": "cluster/9"})


def test_a_full_disk_is_one_line_and_what_was_read_stays_whole(store: Store, index: Index) -> None:
    before = store.positions
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    log = LogRecords()
    for number in range(300):
        log.add(group(f"t-{number}", [0.5] * 8), 400 + number, partition=5)
    taken = log.take()
    with pytest.raises(StoreError, match="the disk is full"):
        store.take(*taken)
    assert (store.positions, index.extent().samples) == (before, 3)
    store._db.execute("PRAGMA max_page_count = 1000000")
    store.take(*taken)
    assert index.extent().samples == 3 + 2400


def test_files_that_are_damaged_and_none_at_all_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is none"):
        Index(tmp_path)
    (tmp_path / "index.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="damaged"):
        Store(tmp_path, texts=texts)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_says_what_the_tokenizer_says(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of(family)
    monkeypatch.setattr("trinity_bus.console.index.group_rows.load_tokenizer", lambda _: tokenizer)
    texts = load_texts(str(tmp_path))
    assert not isinstance(texts, str)
    rng = np.random.default_rng(0)
    # Drawn at random, tokens make bytes that are no letters.
    drawn = [rng.integers(0, len(tokenizer), length).tolist() for length in range(200)]
    said = tokenizer("\u00fc\u4e2d \U0001f642 a \u202e\0 <|im_end|>\n").input_ids
    assert texts([*drawn, said]) == tokenizer.batch_decode([*drawn, said])
    assert texts([[-1, 2**31 - 1, len(tokenizer) + 1], []]) == ["", ""]
    assert texts([]) == []
