"""One task's way through the mesh, as a tree: from its send to the explorers that serve what was learnt from it.

A task's own trace holds what was done for it alone. Train steps are traces of their own, because each works on many
tasks; they *link* to the rollouts that they train on. The tree shows the task's trace, then each train step that links
to it, with the publication, announcement and transfer of the version that it made.
"""

import difflib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.markup import escape as escape_markup
from rich.tree import Tree

from schemas.errors import printable
from trinity_bus.errors import TrinityError
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.spans import SpanRecord

# attributes worth a place in the tree, in this order
SHOWN = (
    names.RL_ATTEMPT,
    names.RL_BATCH_ID,
    names.RL_EXPLORER,
    names.RL_WORKFLOW,
    names.RL_SAMPLES,
    names.RL_REWARD_MEAN,
    names.RL_STEP,
    names.RL_MODEL_VERSION,
    names.RL_WEIGHT_SYNC_EPOCH,
    names.GEN_AI_USAGE_INPUT_TOKENS,
    names.GEN_AI_USAGE_OUTPUT_TOKENS,
    names.MESSAGING_DESTINATION_PARTITION_ID,
    names.MESSAGING_KAFKA_OFFSET,
)
MANY = 4  # so many siblings without children or errors, of one name and service, share a line


class TaskNotTracedError(TrinityError, LookupError):
    """No span of the run belongs to this task."""


@dataclass(slots=True)
class Node:
    """A span and what was done within it."""

    span: SpanRecord
    children: list["Node"] = field(default_factory=list)
    orphan: bool = False  # its parent is not among the spans: not ended yet, or lost with its process


class TaskTrace(NamedTuple):
    """Everything that belongs to a task: its own spans, and the train steps that used it."""

    roots: list[Node]
    linked: list[Node]


def trace_of_task(spans: Sequence[SpanRecord], task_id: str) -> TaskTrace:
    """Collect a task's spans, of those of the whole run in the order of their start. Raises TaskNotTracedError."""
    by_id = {span.span_id: span for span in spans}
    children: dict[str, list[SpanRecord]] = defaultdict(list)
    for span in spans:
        if span.parent_id is not None:
            children[span.parent_id].append(span)
    own = [span for span in spans if span.attributes.get(names.RL_TASK_ID) == task_id]
    if not own:
        raise TaskNotTracedError(_not_found(spans, task_id))
    kept: set[str] = set()
    for span in own:
        # One trace may hold many tasks.
        below = _nodes(span, children, lambda child: child.attributes.get(names.RL_TASK_ID, task_id) == task_id)
        kept |= _ancestors(span, by_id) | below.keys()
    roots = [span for span in spans if span.span_id in kept and span.parent_id not in kept]
    # Spans that are each other's parents, which only a broken sender makes, have no root.
    roots = roots or own[:1]
    traces = {span.trace_id for span in own}
    linked = [
        span
        for span in spans
        if span.span_id not in kept
        # A link may name a span that was lost with its process; its trace is the task's all the same.
        and any(target in kept or (trace in traces and target not in by_id) for trace, target in span.links)
    ]
    found = TaskTrace(
        [_nodes(span, children, lambda child: child.span_id in kept)[span.span_id] for span in roots],
        [_nodes(span, children, lambda _: True)[span.span_id] for span in linked],
    )
    for node in (*found.roots, *found.linked):
        node.orphan = node.span.parent_id is not None and node.span.parent_id not in by_id
    return found


def tree_of_task(spans: Sequence[SpanRecord], task_id: str) -> Tree:
    """Return a task's way as a tree to print with ``rich``; TaskNotTracedError where no span belongs to it."""
    found = trace_of_task(spans, task_id)
    start = min(node.span.start_ns for node in found.roots)
    trace_ids = ", ".join(sorted({node.span.trace_id for node in found.roots}))
    tree = Tree(f"[bold]task {escape(task_id)}[/]  [dim]trace {trace_ids}[/]")
    for root in found.roots:
        _draw(tree, root, start)
    for step in found.linked:
        _draw(tree, step, start, linked=True)
    return tree


def _not_found(spans: Sequence[SpanRecord], task_id: str) -> str:
    known = sorted({str(span.attributes[names.RL_TASK_ID]) for span in spans if names.RL_TASK_ID in span.attributes})
    if not known:
        return (
            f"no span of task {task_id!r}: there are {len(spans)} spans and none belongs to a task; is this the folder "
            "of a run (--run-dir), and has it begun?"
        )
    some = ", ".join(difflib.get_close_matches(task_id, known) or known[:3])
    return f"no span of task {task_id!r} among those of {len(known)} tasks, such as {some}; is the task of this run?"


def _ancestors(span: SpanRecord, by_id: Mapping[str, SpanRecord]) -> set[str]:
    found = {span.span_id}
    parent = by_id.get(span.parent_id or "")
    while parent is not None and parent.span_id not in found:
        found.add(parent.span_id)
        parent = by_id.get(parent.parent_id or "")
    return found


def _nodes(
    root: SpanRecord, children: Mapping[str, list[SpanRecord]], keep: Callable[[SpanRecord], bool]
) -> dict[str, Node]:
    # A span and what was done within it, as far as it is kept, by their ids
    found = {root.span_id: Node(root)}
    open_nodes = [found[root.span_id]]
    while open_nodes:
        node = open_nodes.pop()
        for child in children.get(node.span.span_id, ()):
            if child.span_id not in found and keep(child):
                found[child.span_id] = Node(child)
                node.children.append(found[child.span_id])
        open_nodes.extend(node.children)
    return found


def _draw(tree: Tree, node: Node, start_ns: int, *, linked: bool = False) -> None:
    branch = tree.add(_label(node, start_ns, linked=linked))
    alike: dict[tuple[str, str], list[SpanRecord]] = defaultdict(list)
    for child in node.children:
        if not child.children and child.span.error is None:
            alike[child.span.name, child.span.service].append(child.span)
    for child in node.children:
        group = alike.get((child.span.name, child.span.service), [])
        if child.span not in group or len(group) < MANY:
            _draw(branch, child, start_ns)
        elif child.span is group[0]:
            branch.add(_summary(group, start_ns))


def _summary(alike: Sequence[SpanRecord], start_ns: int) -> str:
    # One line for spans that differ in nothing worth a line each, such as the samples of a group.
    first = alike[0]
    seconds = [span.seconds for span in alike]
    return "  ".join([
        f"[green]{escape(first.name)}[/] [bold]x {len(alike)}[/]",
        f"[magenta]{escape(first.service)}[/]",
        f"[dim]+{_time((first.start_ns - start_ns) / 1e9)}[/] {_time(min(seconds))} to {_time(max(seconds))}",
    ])  # fmt: skip


def _label(node: Node, start_ns: int, *, linked: bool) -> str:
    span = node.span
    colour = "red" if span.error is not None else "cyan" if linked else "green"
    parts = [
        f"[{colour}]{escape(span.name)}[/]",
        f"[magenta]{escape(span.service)}[/]" if span.service else "",
        f"[dim]+{_time((span.start_ns - start_ns) / 1e9)}[/] {_time(span.seconds)}",
        " ".join(
            f"[dim]{_short(name)}=[/]{_value(span.attributes[name])}" for name in SHOWN if name in span.attributes
        ),
        f"[red]error: {escape(span.error or 'no message')}[/]" if span.error is not None else "",
        "[cyan](linked)[/]" if linked else "",
        "[dim](parent not seen)[/]" if node.orphan else "",
    ]
    return "  ".join(part for part in parts if part)


def _short(name: str) -> str:
    return (
        name.removeprefix("rl.")
        .removeprefix("gen_ai.usage.")
        .removeprefix("messaging.")
        .replace("destination.partition.id", "partition")
        .replace("kafka.offset", "offset")
    )


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if abs(seconds) >= 1 else f"{seconds * 1000:.1f} ms"


def escape(text: str) -> str:
    """Return what came out of a span, as it is: neither markup nor anything that steers a terminal."""
    return escape_markup(printable(text))
