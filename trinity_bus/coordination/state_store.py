"""The whole state as entries of a changelog, and back.

A key is ``kind`` or ``kind/name``. The state is exactly the last value of every key, leaving
out those whose last value is None. Time is not part of it: after a restart every limit counts from the start again.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from trinity_bus.coordination import state_codec as codec
from trinity_bus.coordination.fleet import Fleet
from trinity_bus.coordination.ledger import BOOKS_KEY, Counters, Ledger
from trinity_bus.coordination.versions import SYNC_KEY, WeightSync


class StateStore:
    """Looks entries up in the parts of a machine, and fills the parts from entries. Iterates over its keys."""

    def __init__(self, ledger: Ledger, fleet: Fleet, sync: WeightSync) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._sync = sync
        self._kinds: dict[str, Callable[[str], Any]] = {
            BOOKS_KEY: lambda _: codec.counters_body(ledger.counters),
            SYNC_KEY: lambda _: codec.sync_body(sync.state),
            "explorer": self._explorer,
            "batch": self._batch,
            "task": self._task,
            "attempt": self._attempt,
            "result": self._result,
            "done": lambda number: ledger.done.block(int(number)),
            "closed": lambda number: ledger.closed.block(int(number)),
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
        yield from (f"explorer/{name}" for name in self._fleet.explorers)
        for batch_id, batch in ledger.batches.items():
            yield f"batch/{batch_id}"
            yield from (f"result/{task_id}" for task_id in batch.results)
        for task_id, task in ledger.tasks.items():
            yield f"task/{task_id}"
            if task.attempts:
                yield f"attempt/{task_id}"
        yield from ledger.done.keys()
        yield from ledger.closed.keys()

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
        kinds: dict[str, dict[str, Any]] = {kind: {} for kind in self._kinds}
        for key, value in latest.items():
            kind, _, name = key.partition("/")
            if kind not in kinds:
                raise codec.StateError(
                    f"entry {key!r} of the coordinator's state is of no kind that this program knows"
                )
            kinds[kind][name] = codec.unpack(key, value)
        try:
            self._fill(kinds, now)
        except (KeyError, TypeError, ValueError) as error:
            raise codec.StateError(f"the coordinator's state contradicts itself: {error!r}") from error

    def _task(self, task_id: str) -> Any:
        task = self._ledger.tasks.get(task_id)
        return None if task is None else codec.task_body(task)

    def _attempt(self, task_id: str) -> Any:
        task = self._ledger.tasks.get(task_id)
        return None if task is None else codec.attempt_body(task)

    def _result(self, task_id: str) -> Any:
        batch_id = self._ledger.result_in.get(task_id)
        if batch_id is None:
            return None
        return codec.result_body(batch_id, self._ledger.batches[batch_id].results[task_id])

    def _batch(self, batch_id: str) -> Any:
        batch = self._ledger.batches.get(batch_id)
        return None if batch is None else codec.batch_body(batch)

    def _explorer(self, name: str) -> Any:
        explorer = self._fleet.explorers.get(name)
        return None if explorer is None else codec.explorer_body(explorer)

    def _fill(self, kinds: dict[str, dict[str, Any]], now: float) -> None:
        ledger = self._ledger
        batches = {name: codec.batch_of(name, body) for name, body in kinds["batch"].items()}
        for task_id, body in kinds["result"].items():
            batch_id, result = codec.result_of(body)
            batches[batch_id].results[task_id] = result
        tasks = [codec.task_of(body, kinds["attempt"].get(name), now) for name, body in kinds["task"].items()]
        books = kinds[BOOKS_KEY].get("")
        ledger.restore(list(batches.values()), tasks, Counters() if books is None else codec.counters_of(books))
        ledger.done.restore({int(name): names for name, names in kinds["done"].items()})
        ledger.closed.restore({int(name): names for name, names in kinds["closed"].items()})
        self._fleet.restore([codec.explorer_of(name, body) for name, body in kinds["explorer"].items()], now)
        for task_id, task in ledger.running.items():
            attempt = task.running
            explorer = None if attempt is None else self._fleet.find(attempt.explorer, attempt.incarnation)
            if explorer is not None:
                explorer.assigned.add(task_id)
        sync = kinds[SYNC_KEY].get("")
        if sync is not None:
            self._sync.restore(codec.sync_of(sync), now)
