"""Settings asked for and checked, and files of them.

Nothing is kept between requests: each sends all answers, and is answered with what they come to. Paths in answers are
looked at, so only those are asked who may act, or sit at a machine whose console nobody else reaches.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from trinity_bus.console.configuration import files
from trinity_bus.console.configuration.checks import Checked, Checks
from trinity_bus.console.configuration.questions import (
    EXTRA_FIELDS,
    QUESTIONS,
    TASKS,
    Draft,
    answers_of,
    draft_of,
    fields,
    sections_of_fields,
)
from trinity_bus.hub import NotCachedError, model_folder
from trinity_bus.sizing.memory import GIB
from trinity_bus.training.families import ModelShape, read_shape
from workers.console.access_control import form, operator
from workers.console.page_context import BadLinkError, PageContext
from workers.preconditions import memory, refusals


def _has_rows(path: str) -> bool:
    found = Path(path)
    try:
        return found.exists() or next(found.parent.glob(found.name), None) is not None
    except (OSError, ValueError):
        # Longer than names are, no pattern, in a folder that is closed to us.
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
    def __init__(self, context: PageContext) -> None:
        self._context = context
        own = context.settings.console
        self._is_mine = own.token is None and own.viewer_token is None and own.user_header is None

    def install(self, app: web.Application) -> None:
        app.router.add_get("/configuration", self._begin)
        app.router.add_post("/configuration", self._check)
        app.router.add_post("/configuration/mesh.toml", self._mesh_file)
        app.router.add_post("/configuration/tasks.toml", self._tasks_file)

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
        return _file("mesh.toml", files.mesh_file(await self._sound_draft(request)))

    async def _tasks_file(self, request: web.Request) -> web.Response:
        rows = (await self._sound_draft(request)).rows
        if rows is None:
            raise BadLinkError("there are no rows to describe")
        return _file(TASKS, files.tasks_file(rows))

    async def _sound_draft(self, request: web.Request) -> Draft:
        self._let_in(request)
        checked = await self._checked(await _answers(request), lay_out=True)
        if not checked.is_sound:
            raise BadLinkError(f"this is no mesh yet: {checked.problems[0].text}")
        return checked.draft

    def _let_in(self, request: web.Request) -> None:
        if not self._is_mine:
            operator(request)

    async def _checked(self, answers: Mapping[str, str], *, lay_out: bool) -> Checked:
        return await asyncio.to_thread(_CHECKS, draft_of(answers), lay_out=lay_out)

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
            "mesh_toml": files.mesh_file(checked.draft) if checked is not None and checked.is_sound else "",
            "up": _up(checked) if checked is not None and checked.is_sound else "",
        }
        return self._context.render(request, "configuration.html", **values)


def _mode(request: web.Request) -> str:
    mode = request.query.get("mode", _MODES[0])
    if mode not in _MODES:
        raise BadLinkError(f"mode = {mode[:40]!r}: there are {' and '.join(_MODES)}")
    return mode


def _up(checked: Checked) -> str:
    # The command that runs it on one machine
    hardware, settings = checked.draft.hardware, checked.settings
    assert settings is not None  # noqa: S101 - it is sound
    words = ["trinity-bus up --config mesh.toml"]
    if (explorers := hardware.explorers(settings)) > 1:
        words.append(f"--explorers {explorers}")
    if hardware.trainer_gpus or hardware.explorer_gpus:
        words.append(f"--trainer-gpus {hardware.trainer_gpus}")
    return " ".join(words)


def _file(name: str, text: str) -> web.Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return web.Response(text=text, content_type="text/plain", headers=headers)


async def _answers(request: web.Request) -> dict[str, str]:
    return {name: text for name, text in (await form(request)).items() if name != "proof"}
