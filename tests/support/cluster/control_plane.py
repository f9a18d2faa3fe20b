"""Kubernetes without machines: etcd, API server, controllers and scheduler as processes here.

::

    tests, Helm --HTTPS, a token for each user--> kube-apiserver --> etcd, in a folder that is thrown away
                                                     ^      ^
            kube-controller-manager, kube-scheduler -'      '- Kubelets: what nodes would say (kubelets.py)

Nothing runs in a pod, and no packet is filtered. All four are built from their source by ``tools/cluster.sh``. One that
ends is told with the last lines of its log; all die with this process.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, Self

import yaml

from tests.support.chart import ROOT
from tests.support.cluster.api import Api, until_served
from tests.support.cluster.definitions import definitions
from tests.support.mesh.ports import quiet_ports
from trinity_bus.runtime.process import Child, tail

BINARIES: Final = ROOT / ".cache" / "cluster"
CONTROLLERS: Final = (
    "clusterrole-aggregation-controller",
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "serviceaccount-controller",
    "statefulset-controller",
)
"""Not the one that takes nodes for lost: nobody beats for them here."""
OWNER: Final = "owner"
"""May do everything."""
TENANT: Final = "tenant"
"""May do what a namespace's administrator may, in the namespaces that are given to them."""
CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
START_LIMIT_S: Final = 120.0


class ControlPlane:
    """A control plane, which runs as long as a block, and writes into an empty folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._etcd, self._peer, self._port = quiet_ports(3)
        self._children: dict[str, Child] = {}
        self._apis: list[Api] = []
        self.url = f"https://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._launch()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def api(self) -> Api:
        return self._apis[0]

    def another_api(self) -> Api:
        """Return a further client of its owner, for another thread."""
        self._apis.append(Api(self.url, self._certificate, OWNER))
        return self._apis[-1]

    def kubeconfig(self, user: str) -> Path:
        path = self._folder / f"{user}.yaml"
        cluster = {"server": self.url, "certificate-authority": str(self._certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "own", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [{"name": "own", "context": {"cluster": "own", "user": user}}],
            "current-context": "own",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def check(self) -> None:
        """Fail where one of its processes has ended."""
        for name, child in self._children.items():
            assert child.poll() is None, f"{name} has ended: {tail(self._folder / f'{name}.log', 40)}"

    @property
    def _certificate(self) -> Path:
        return self._folder / "certificates" / "apiserver.crt"

    def _launch(self) -> None:
        tokens, key = self._folder / "tokens.csv", self._folder / "accounts.key"
        tokens.write_text(f"{OWNER},{OWNER},1,system:masters\n{TENANT},{TENANT},2\n")
        making = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key)]
        subprocess.run(making, check=True, capture_output=True)
        address = f"http://127.0.0.1:{self._etcd}"
        self._start(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={address}",
            f"--advertise-client-urls={address}",
            f"--listen-peer-urls=http://127.0.0.1:{self._peer}",
            # What it holds is thrown away.
            "--unsafe-no-fsync",
            "--log-level=error",
        )
        self._start(
            "kube-apiserver",
            f"--etcd-servers={address}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self._certificate.parent}",
            # Nobody looks for it in the cluster.
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            f"--token-auth-file={tokens}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--enable-priority-and-fairness=false",
            "--profiling=false",
        )
        until_served(self.url, self._certificate, START_LIMIT_S)
        self.another_api()
        common = (f"--kubeconfig={self.kubeconfig(OWNER)}", "--leader-elect=false", "--secure-port=0")
        quick = ("--kube-api-qps=500", "--kube-api-burst=500")
        self._start("kube-controller-manager", *common, *quick, f"--controllers={','.join(CONTROLLERS)}")
        self._start("kube-scheduler", *common, *quick)
        self._define()
        # What docs/kubernetes.md wants to be there.
        self.api.create(CLASSES, {"metadata": {"name": "trinity-bus-trainer"}, "value": 1000})

    def _end(self) -> None:
        while self._apis:
            self._apis.pop().close()
        while self._children:
            self._children.popitem()[1].kill()
        shutil.rmtree(self._folder / "etcd", ignore_errors=True)

    def _start(self, name: str, *arguments: str) -> None:
        self._children[name] = Child([BINARIES / name, *arguments], output=self._folder / f"{name}.log")

    def _define(self) -> None:
        """Make the kinds of the operators, and wait until they are served."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        made = definitions()
        for one in made:
            self.api.create(path, one)

        wanted = {one["metadata"]["name"] for one in made}

        def served() -> bool:
            self.check()
            return wanted <= {one["metadata"]["name"] for one in self.api.items(path) if _established(one)}

        self.api.wait(served, "kinds of the operators")


def _established(definition: Any) -> bool:
    # None until somebody has looked at it.
    conditions = definition.get("status", {}).get("conditions") or ()
    return any((one["type"], one["status"]) == ("Established", "True") for one in conditions)
