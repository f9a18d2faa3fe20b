"""Stands in for what runs on nodes: pods that the scheduler has put there run and become ready, and end when told to.

::

    scheduled --> Running, and ready, unless its service is told to be slow --deleted--> ended, at once

Nothing is executed: no image, no probe, no volume. How long a pod was given to end is kept.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tests.support.cluster.api import STRATEGIC, Api

COMPONENT: Final = "app.kubernetes.io/component"
EVERY_S: Final = 0.1


class Kubelets:
    """All nodes, in a thread of its own, which has the API for itself."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kubelets")
        self.slow: set[str] = set()
        """Services of which no further pod becomes ready."""
        self.graces: dict[str, int] = {}
        """Name of each pod that has ended to the seconds that it was given for it."""

    def add(self, name: str, capacity: Mapping[str, str], labels: Mapping[str, str] | None = None) -> None:
        """Bring a node."""
        own = {"kubernetes.io/hostname": name} | dict(labels or {})
        self._api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": own}})
        whole = dict(capacity) | {"pods": "110", "ephemeral-storage": "4Ti"}
        ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]
        status = {"capacity": whole, "allocatable": whole, "conditions": ready}
        self._api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        # Every new node has it until its kubelet is ready.
        self._api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    def check(self) -> None:
        """Raise what has ended it."""
        if self._error is not None:
            raise self._error

    @contextmanager
    def running(self) -> Iterator["Kubelets"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()
        self.check()

    def _run(self) -> None:
        try:
            while not self._ended.wait(EVERY_S):
                for pod in self._api.items("/api/v1/pods"):
                    if pod["spec"].get("nodeName"):
                        self._care(pod)
        except BaseException as error:  # noqa: BLE001 - for check(), in the thread of the tests
            self._error = error

    def _care(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if "deletionTimestamp" in meta:
            self.graces[meta["name"]] = meta["deletionGracePeriodSeconds"]
            self._api.delete(path, gracePeriodSeconds=0)
            return
        ready = "False" if meta.get("labels", {}).get(COMPONENT) in self.slow else "True"
        known = {one["type"]: one["status"] for one in pod["status"].get("conditions", [])}
        if known.get("Ready") in (ready, "True"):
            return
        conditions = [{"type": "Ready", "status": ready}, {"type": "ContainersReady", "status": ready}]
        status = {"phase": "Running", "conditions": conditions, "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}
        answer = self._api.answer("PATCH", f"{path}/status", {"status": status}, STRATEGIC)
        # Another may have deleted it meanwhile.
        assert answer.status_code in (200, 404, 409), answer.text
