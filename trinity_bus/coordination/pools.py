"""Pools: explorers that serve one model, and tasks that ask for it. Pure.

A task has a *kind*, its pool and workflow, and goes to an explorer that has it. The pool without a name is that of the
model that is trained; the name of the model names it too. A task for a pool without explorers waits, and the
coordinator's heartbeat says for which. Only explorers of its pool can judge that nobody knows its workflow.

An explorer follows the trainer, or is *fixed*: it serves one checkpoint, and is no member of the transfers of weights.

====================================  ==================================================================================
explorer                              may be handed what needs version ``v``
====================================  ==================================================================================
follows the trainer                   where it serves ``v`` or a newer one
fixed, in a pool of its own           always: its pool has no versions
fixed, in that of the trained model   always, before any version was published (nobody trains); then as if it followed
====================================  ==================================================================================
"""

from schemas import Task

OWN = ""  # the pool of the model that is trained

type Kind = tuple[str, str]  # pool and workflow


def pool_of(name: str | None, model: str) -> str:
    """Return a pool, as it is called here. ``model`` is the one that is trained."""
    return OWN if name is None or name == model else name


def kind_of(task: Task, model: str) -> Kind:
    return pool_of(task.pool, model), task.workflow
