"""Settings asked for and checked, files of them, and a mesh that is started here.

Nothing is kept between requests: each sends all answers, and is answered with what they come to. Paths in answers are
looked at, so only those are asked who may act, or sit at a machine whose console nobody else reaches.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from trinity_bus.console.web.who import host_is_ours
from trinity_bus.errors import ConfigError
from trinity_bus.hub import NotCachedError, model_folder
from trinity_bus.runtime.ports import free_port, is_loopback
from trinity_bus.sizing.memory import GIB
from trinity_bus.training.families import ModelShape, read_shape
from workers.console.access_control import form, operator
from workers.console.draft import (
    EXTRA_FIELDS,
    QUESTIONS,
    TASKS,
    Checked,
    Checks,
    Draft,
    answers_of,
    draft_of,
    fields,
    mesh_file,
    sections_of_fields,
    tasks_file,
)
from workers.console.local_mesh import LocalMesh, LocalRun, MeshBusyError
from workers.console.page_context import VISITOR, BadLinkError, PageContext
from workers.local import PlannedService, planned, service_environment
from workers.preconditions import memory, refusals
from workers.runs import new_run

log = logging.getLogger("workers.console")


def _has_rows(path: str) -> bool:
    try:
        found = Path(path).expanduser()
        return found.exists() or next(found.parent.glob(found.name), None) is not None
    except (OSError, ValueError, RuntimeError):
        # Longer than names are, no pattern, in a folder that is closed to us, of nobody's home.
        return False


def _shape(path: str) -> ModelShape | None:
    # A model's shape; None of one that is on a hub: who looks at pages has nothing fetched
    try:
        return read_shape(model_folder(path, weights=False, fetch=False))
    except NotCachedError:
        return None


_CHECKS: Final = Checks(refusals, _shape, _has_rows, memory)
_MODES: Final = ("beginner", "expert")


class Configuration:
    def __init__(self, context: PageContext, mesh: LocalMesh) -> None:
        self._context = context
        self._mesh = mesh
        own = context.settings.console
        self._is_mine = own.token is None and own.viewer_token is None and own.user_header is None
        self._is_here = is_loopback(own.host) and own.user_header is None

    def install(self, app: web.Application) -> None:
        app.router.add_get("/configuration", self._begin)
        app.router.add_post("/configuration", self._check)
        app.router.add_post("/configuration/mesh.toml", self._mesh_file)
        app.router.add_post("/configuration/tasks.toml", self._tasks_file)
        app.router.add_post("/configuration/run", self._run)
        app.router.add_get("/configuration/mesh", self._look)
        app.router.add_get("/configuration/stop", self._ask_to_stop)
        app.router.add_post("/configuration/stop", self._stop)

    async def _begin(self, request: web.Request) -> web.Response:
        self._let_in(request)
        return self._page(request, {}, None)

    async def _check(self, request: web.Request) -> web.Response:
        self._let_in(request)
        answers = await _answers(request)
        goes_on = request.query.get("from") == "beginner"
        checked = await self._checked(answers, lay_out=goes_on or _mode(request) == "beginner")
        if goes_on:
            answers = {**answers_of(checked.draft.values), **answers}
        return self._page(request, answers, checked)

    async def _mesh_file(self, request: web.Request) -> web.Response:
        return _file("mesh.toml", mesh_file(await self._sound_draft(request)))

    async def _tasks_file(self, request: web.Request) -> web.Response:
        rows = (await self._sound_draft(request)).rows
        if rows is None:
            raise BadLinkError("there are no rows to describe")
        return _file(TASKS, tasks_file(rows))

    async def _sound_draft(self, request: web.Request) -> Draft:
        self._let_in(request)
        checked = await self._checked(await _answers(request), lay_out=True)
        if not checked.is_sound:
            raise BadLinkError(f"this is no mesh yet: {checked.problems[0].text}")
        return checked.draft

    async def _run(self, request: web.Request) -> web.StreamResponse:
        who = self._let_run(request)
        answers = await _answers(request)
        checked = await self._checked(answers, lay_out=True)
        if not checked.is_sound or checked.settings is None:
            return self._page(request, answers, checked)
        if checked.too_large:
            raise ConfigError(checked.too_large)
        if self._mesh.is_busy:
            raise MeshBusyError("a mesh that was started from here runs already: stop it first")
        try:
            run = await asyncio.to_thread(self._prepared, checked)
        except OSError as error:
            raise ConfigError(f"the files of a run cannot be written: {error}") from error
        log.warning("%s starts the mesh %s in %s", who, run.namespace, run.folder)
        self._mesh.start(run)
        raise web.HTTPSeeOther("/configuration/mesh")

    async def _look(self, request: web.Request) -> web.Response:
        self._let_in(request)
        activities = await asyncio.to_thread(self._mesh.activities)
        values = {"mesh": self._mesh, "activities": activities, "may_run": self._may_run(request)}
        response = self._context.render(request, "local_mesh.html", **values)
        if self._mesh.state in {"starting", "stopping"}:
            response.headers["Refresh"] = "2"
        return response

    async def _ask_to_stop(self, request: web.Request) -> web.Response:
        self._let_run(request)
        return self._context.render(request, "confirm.html", what="stop", version=None, back="/configuration/mesh")

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        log.warning("%s stops the mesh that was started from here", self._let_run(request))
        await asyncio.shield(self._mesh.stop())
        raise web.HTTPSeeOther("/configuration/mesh")

    def _let_in(self, request: web.Request) -> None:
        if not self._is_mine:
            operator(request)

    def _may_run(self, request: web.Request) -> bool:
        return self._is_at(request) and request[VISITOR].may_act

    def _let_run(self, request: web.Request) -> str:
        who = operator(request).name
        if not self._is_at(request):
            raise ConfigError(
                "a mesh is started by who sits at this machine: from a console that listens on a loopback address "
                "alone, under that address, and not through a proxy"
            )
        return who

    def _is_at(self, request: web.Request) -> bool:
        # Settings can name programs. A proxy on this machine comes from it too, with the name that browsers know.
        return self._is_here and host_is_ours(request.host)

    async def _checked(self, answers: Mapping[str, str], *, lay_out: bool) -> Checked:
        return await asyncio.to_thread(_CHECKS, draft_of(answers), lay_out=lay_out)

    def _prepared(self, checked: Checked) -> LocalRun:
        settings, own, draft = checked.settings, self._context.settings, checked.draft
        assert settings is not None  # noqa: S101 - it is sound
        namespace = settings.mesh.namespace
        same = settings.kafka.bootstrap_servers in {None, own.kafka.bootstrap_servers}
        shown_here = same and namespace == own.kafka.namespace
        if shown_here and (alive := next(self._context.feed.state.alive(), None)):
            raise MeshBusyError(
                f"the mesh {namespace} runs already, with {alive.name}: stop it, or give another mesh.namespace"
            )
        folder = new_run(time.strftime(f"%Y%m%d-%H%M%S-{namespace}")).resolve()
        if draft.rows is not None:
            rows = replace(draft.rows, path=str(Path(draft.rows.path).absolute()))
            (folder / TASKS).write_text(tasks_file(rows), encoding="utf-8")
        servers = settings.kafka.bootstrap_servers or own.kafka.bootstrap_servers
        draft = replace(draft, values={**draft.values, "kafka.bootstrap_servers": servers})
        (folder / "mesh.toml").write_text(mesh_file(draft, str(folder / TASKS)), encoding="utf-8")
        plan, address = planned(checked.services, settings, draft.hardware), ""
        if not shown_here:
            port = free_port()
            plan.append(PlannedService("console", ["--set", f"console.port={port}", "run", "console"]))
            address = f"http://127.0.0.1:{port}/"
        return LocalRun(namespace=namespace, folder=folder, plan=plan, env=service_environment(own), console=address)

    def _page(self, request: web.Request, answers: Mapping[str, str], checked: Checked | None) -> web.Response:
        mode = _mode(request)
        known = {**fields(), **EXTRA_FIELDS}
        touched = {*answers, *(path for one in (checked.problems if checked else ()) for path in one.paths)}
        values: dict[str, Any] = {
            "mode": mode,
            "answers": answers,
            "carried": {path: text for path, text in answers.items() if path not in QUESTIONS and text},
            "checked": checked,
            "known": known,
            "questions": QUESTIONS,
            "sections": sections_of_fields(),
            "extra": list(EXTRA_FIELDS.values()),
            "opened": {path.partition(".")[0] for path in touched if answers.get(path) or path not in answers},
            "gib": GIB,
            "mesh_toml": mesh_file(checked.draft) if checked is not None and checked.is_sound else "",
            "may_run": self._may_run(request),
        }
        return self._context.render(request, "configuration.html", **values)


def _mode(request: web.Request) -> str:
    mode = request.query.get("mode", _MODES[0])
    if mode not in _MODES:
        raise BadLinkError(f"mode = {mode[:40]!r}: there are {' and '.join(_MODES)}")
    return mode


def _file(name: str, text: str) -> web.Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return web.Response(text=text, content_type="text/plain", headers=headers)


async def _answers(request: web.Request) -> dict[str, str]:
    return {name: text for name, text in (await form(request)).items() if name != "proof"}
