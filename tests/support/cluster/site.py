"""A namespace for one mesh, whose owner has rights there and nowhere else, and what Helm does with it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.support.chart import CHART, HELM
from tests.support.cluster.api import Api
from tests.support.cluster.control_plane import TENANT, ControlPlane
from tests.support.cluster.definitions import PLURALS
from tests.support.cluster.kubelets import COMPONENT, Kubelets

_CLAIMS: Final = 3
"""Volumes that there are for claims: as large as any asks for, and for any number of nodes."""
_QUOTA: Final = ("cpu", "memory")
LARGE: Final = {"cpu": "512", "memory": "8Ti", "nvidia.com/gpu": "64"}
"""A node that bears any of the sizes."""


class Site:
    """A namespace in which nothing runs that is not confined or has no limits."""

    def __init__(self, plane: ControlPlane, kubelets: Kubelets, name: str) -> None:
        self._plane = plane
        self.api: Api = plane.api
        self.kubelets = kubelets
        self.name = name

    def path(self, group: str, plural: str, name: str = "") -> str:
        """Return the address of a list, or of what has a name in it. The group: ``v1``, or such as ``apps/v1``."""
        root = "/api/v1" if group == "v1" else f"/apis/{group}"
        return f"{root}/namespaces/{self.name}/{plural}" + (f"/{name}" if name else "")

    def helm(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        own = [f"--kubeconfig={self._plane.kubeconfig(TENANT)}", f"--namespace={self.name}"]
        given = ["mesh", str(CHART)] if command in ("install", "upgrade") else ["mesh"]
        return subprocess.run(
            [str(HELM), command, *given, *own, *arguments], capture_output=True, text=True, timeout=300, check=False
        )

    def done(self, command: str, *arguments: str) -> None:
        """Likewise; and nothing is wrong, nor is anybody warned of anything."""
        found = self.helm(command, *arguments)
        assert found.returncode == 0, found.stderr
        assert "arning" not in found.stderr, found.stderr

    def pods(self, component: str = "") -> list[dict[str, Any]]:
        found = self.api.items(self.path("v1", "pods"))
        return [
            pod
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
            and component in ("", pod["metadata"].get("labels", {}).get(COMPONENT))
        ]

    def names(self, component: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.pods(component)]

    def ready(self, component: str) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.pods(component)
            if any((one["type"], one["status"]) == ("Ready", "True") for one in pod["status"].get("conditions", []))
        ]

    def until_ready(self, **counts: int) -> None:
        """Return once each service has so many ready pods, and no others."""

        def found() -> bool:
            self._plane.check()
            self.kubelets.check()
            return all(len(self.pods(name)) == len(self.ready(name)) == many for name, many in counts.items())

        try:
            self.api.wait(found, f"ready pods as in {counts}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.troubles()}") from None

    def troubles(self) -> list[str]:
        """Return what the control plane complains of."""
        events = self.api.items(self.path("v1", "events"))
        return [f"{one['involvedObject']['name']}: {one['message']}" for one in events if one["type"] != "Normal"]

    def everything(self) -> set[str]:
        """Return ``kind/name`` of all that somebody has made here: no events, nor what follows from something else."""
        found = set()
        for group, plural in self._lists():
            for one in self.api.items(self.path(group, plural)):
                if "ownerReferences" not in one["metadata"]:
                    found.add(f"{plural}/{one['metadata']['name']}")
        return found

    def _lists(self) -> Iterator[tuple[str, str]]:
        groups = self.api.get("/apis")["groups"]
        for group in ["v1", *(one["preferredVersion"]["groupVersion"] for one in groups)]:
            resources = self.api.get("/api/v1" if group == "v1" else f"/apis/{group}")["resources"]
            for one in resources:
                known = one["namespaced"] and {"list", "delete"} <= set(one["verbs"])
                if known and one["name"] not in ("events", "leases", "pods"):
                    yield group, one["name"]


@contextmanager
def site(plane: ControlPlane, kubelets: Kubelets, name: str) -> Iterator[Site]:
    """Make a namespace; at the end it is gone with all that is in it, as are all nodes and volumes."""
    api = plane.api
    level = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
    api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": level}})
    found = Site(plane, kubelets, name)
    hard = {f"{kind}.{what}": "100Ti" for kind in ("requests", "limits") for what in _QUOTA}
    api.create(found.path("v1", "resourcequotas"), {"metadata": {"name": "all"}, "spec": {"hard": hard}})
    _give_rights(found)
    api.wait(lambda: api.items(found.path("v1", "serviceaccounts")), "account that every namespace has")
    for number in range(_CLAIMS):
        spec = {
            "capacity": {"storage": "8Ti"},
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
            "hostPath": {"path": f"/nowhere/{number}"},
        }
        api.create("/api/v1/persistentvolumes", {"metadata": {"name": f"{name}-{number}"}, "spec": spec})
    claim = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    api.create(found.path("v1", "persistentvolumeclaims"), {"metadata": {"name": "models"}, "spec": claim})
    try:
        yield found
    finally:
        api.delete(f"/api/v1/namespaces/{name}")
        api.wait(lambda: api.answer("GET", f"/api/v1/namespaces/{name}").status_code == 404, "end of the namespace")
        for kind in ("nodes", "persistentvolumes"):
            for one in api.items(f"/api/v1/{kind}"):
                api.delete(f"/api/v1/{kind}/{one['metadata']['name']}")
        kubelets.slow.clear()


def _give_rights(site: Site) -> None:
    """Make the tenant the namespace's administrator, also of the operators' kinds."""
    groups = sorted({group for group, _ in PLURALS.values()})
    rules = [{"apiGroups": groups, "resources": ["*"], "verbs": ["*"]}]
    rights = "rbac.authorization.k8s.io/v1"
    site.api.create(site.path(rights, "roles"), {"metadata": {"name": "operators"}, "rules": rules})
    for name, kind in (("admin", "ClusterRole"), ("operators", "Role")):
        site.api.create(
            site.path(rights, "rolebindings"),
            {
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT}],
            },
        )
