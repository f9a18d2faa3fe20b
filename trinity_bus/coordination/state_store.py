"""The whole state as entries of a changelog, and back.

A key is ``kind`` or ``kind/name``. The state is exactly the last value of every key, leaving
out those whose last value is None. Time is not part of it: after a restart every limit counts from the start again.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from trinity_bus.coordination import state_codec as codec
from trinity_bus.coordination.counters import BOOKS_KEY, Counters
from trinity_bus.coordination.kept import Kept
from trinity_bus.coordination.tasks import OpenTask
from trinity_bus.coordination.versions import SYNC_KEY

type Kinds = dict[str, dict[str, Any]]
"""Bodies of entries by kind and name."""


class StateStore:
    """Looks entries up in the parts of a machine, and fills the parts from entries. Iterates over its keys."""

    def __init__(self, kept: Kept) -> None:
        ledger, sync, finalizers = kept.ledger, kept.sync, kept.finalizers
        outcomes, replies = kept.outcomes, kept.replies.memory
        self._ledger = ledger
        self._fleet = kept.fleet
        self._sync = sync
        self._finalizers = finalizers
        self._outcomes = outcomes
        self._replies = replies
        self._kinds: dict[str, Callable[[str], Any]] = {
            BOOKS_KEY: lambda _: codec.counters_body(ledger.counters),
            SYNC_KEY: lambda _: codec.sync_body(sync.state),
            "explorer": self._explorer,
            "assigned": self._assigned,
            "batch": self._batch,
            "tasks": lambda number: ledger.pages.items(int(number)),
            "ended": lambda number: ledger.pages.ended(int(number)),
            "progress": self._progress,
            "answer": self._answer,
            "results": self._results,
            "finalizers": lambda batch_id: codec.finalizers_body(finalizers.of(batch_id)) or None,
            "done": lambda number: ledger.done.block(int(number)),
            "closed": lambda number: ledger.closed.block(int(number)),
            "outcomes": lambda number: outcomes.entry(int(number)),
            "replies": lambda number: replies.entry(int(number)),
        }

    def entry(self, key: str) -> bytes | None:
        """The present value of an entry; None where there is none."""
        kind, _, name = key.partition("/")
        body = self._kinds[kind](name)
        return None if body is None else codec.pack(body)

    def __iter__(self) -> Iterator[str]:
        ledger = self._ledger
        if ledger.counters != Counters():
            yield BOOKS_KEY
        if self._sync.state.release is not None:
            yield SYNC_KEY
        for name, explorer in self._fleet.explorers.items():
            yield f"explorer/{name}"
            if explorer.assigned:
                yield f"assigned/{name}"
        for batch_id, batch in ledger.batches.items():
            yield f"batch/{batch_id}"
            yield from (f"results/{page}/{batch_id}" for page in range(len(batch.packed)))
        yield from ledger.pages.keys()
        for task_id, task in ledger.tasks.items():
            if task.progressed:
                yield f"progress/{task_id}"
                yield from (f"answer/{part.index}/{task_id}" for part in task.parts if part.answer is not None)
        yield from (f"finalizers/{batch_id}" for batch_id in self._finalizers.batch_ids())
        for remembered in (ledger.done, ledger.closed, self._outcomes, self._replies):
            yield from remembered.keys()

    def load(self, entries: Iterable[tuple[str, bytes | None]], now: float) -> None:
        """Fills the parts, which are as new, from a changelog in the order in which it was written.

        Raises:
            StateError: It cannot be read, by this program at least.
        """
        latest: dict[str, bytes] = {}
        for key, value in entries:
            if value is None:
                latest.pop(key, None)
            else:
                latest[key] = value
        kinds: Kinds = {kind: {} for kind in self._kinds}
        for key, value in latest.items():
            kind, _, name = key.partition("/")
            if kind not in kinds:
                raise codec.StateError(
                    f"entry {key!r} of the coordinator's state is of no kind that this program knows"
                )
            kinds[kind][name] = codec.unpack(key, value)
        try:
            self._fill(kinds, now)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise codec.StateError(f"the coordinator's state contradicts itself: {error!r}") from error

    # -- entries -----------------------------------------------------------------------------------------------------

    def _explorer(self, name: str) -> Any:
        explorer = self._fleet.explorers.get(name)
        return None if explorer is None else codec.explorer_body(explorer)

    def _assigned(self, name: str) -> Any:
        explorer = self._fleet.explorers.get(name)
        if explorer is None or not explorer.assigned:
            return None
        return codec.assigned_body(self._ledger.running[key] for key in explorer.assigned)

    def _batch(self, batch_id: str) -> Any:
        batch = self._ledger.batches.get(batch_id)
        return None if batch is None else codec.batch_body(batch)

    def _progress(self, task_id: str) -> Any:
        task = self._ledger.tasks.get(task_id)
        return None if task is None else codec.progress_body(task)

    def _answer(self, name: str) -> Any:
        index, _, task_id = name.partition("/")
        task = self._ledger.tasks.get(task_id)
        answer = None if task is None else task.parts[int(index)].answer
        return None if answer is None else codec.answer_body(answer)

    def _results(self, name: str) -> Any:
        page, _, batch_id = name.partition("/")
        batch = self._ledger.batches.get(batch_id)
        return None if batch is None else batch.packed.page(int(page))

    # -- restoring ---------------------------------------------------------------------------------------------------

    def _fill(self, kinds: Kinds, now: float) -> None:
        ledger = self._ledger
        tasks = self._tasks(kinds)
        self._fleet.restore([codec.explorer_of(name, body) for name, body in kinds["explorer"].items()], now)
        for name, items in kinds["assigned"].items():
            explorer = self._fleet.explorers[name]
            for item in items:
                attempt = codec.take_attempt(tasks[item[0]], item, explorer, now)
                explorer.assigned[attempt.key] = None
        pages: dict[str, dict[int, list[bytes]]] = {}
        for key, items in kinds["results"].items():
            page, _, batch_id = key.partition("/")
            pages.setdefault(batch_id, {})[int(page)] = items
        batches = [codec.batch_of(name, body, pages.pop(name, {})) for name, body in kinds["batch"].items()]
        if pages:
            raise ValueError(f"results of batches that are not there: {sorted(pages)}")
        books = kinds[BOOKS_KEY].get("")
        ledger.restore(batches, tasks.values(), Counters() if books is None else codec.counters_of(books))
        for window, kind in ((ledger.done, "done"), (ledger.closed, "closed")):
            window.restore({int(number): names for number, names in kinds[kind].items()})
        for memory, kind in ((self._outcomes, "outcomes"), (self._replies, "replies")):
            memory.restore({int(number): entry for number, entry in kinds[kind].items()})
        self._finalizers.restore(
            [one for _, body in sorted(kinds["finalizers"].items()) for one in codec.finalizers_of(body, now)]
        )
        sync = kinds[SYNC_KEY].get("")
        if sync is not None:
            self._sync.restore(codec.sync_of(sync), now)

    def _tasks(self, kinds: Kinds) -> dict[str, OpenTask]:
        """The open tasks, with all that is known of them but what is running."""
        tasks: dict[str, OpenTask] = {}
        for key, items in kinds["tasks"].items():
            number, ended = int(key), kinds["ended"].get(key, 0)
            places = {}
            for place, item in enumerate(items):
                if not ended >> place & 1:
                    task = codec.task_of(item, number)
                    tasks[task.task.task_id] = task
                    places[task.task.task_id] = place
            self._ledger.pages.restore(number, items, ended, places)
        for key, body in kinds["answer"].items():
            index, _, task_id = key.partition("/")
            task = tasks[task_id]
            task.answer(task.parts[int(index)], codec.answer_of(body))
        for task_id, body in kinds["progress"].items():
            codec.take_progress(tasks[task_id], body)
        return tasks
