"""Looks at every page of a running console in a headless Chromium, light and dark, wide and narrow, and keeps pictures.

    make console-shots URL=http://127.0.0.1:8900         # pictures go to build/console
    make console-shots ARGS='--docs docs/images'         # and the wide ones, small in bytes, to the documentation

It fails where a page logs an error, is wider than its window, has something to press or fill in without a name, or
where axe-core finds a serious or critical fault of accessibility, or grows: after much news it has to have the nodes
and listeners that it had. A console that asks for a token is shown ``CONSOLE_TOKEN``, of the environment.
Chromium is no Python package, so this is a tool and no test: Debian's `chromium` will do.
"""

import argparse
import asyncio
import base64
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from PIL import Image

_WIDTHS: Final = (1280, 400)


@dataclass(frozen=True, slots=True)
class Shown:
    """A page to look at."""

    name: str
    path: str
    act: str = ""
    """A script that leads on from there to what is looked at."""
    anonymous: bool = False
    """Whether nobody is logged in there."""


_POST: Final = """
for (const [name, value] of [["mesh.model_path", "Qwen/Qwen3-0.6B"], ["trainer.checkpoint_dir", "checkpoints"]])
  document.getElementsByName(name)[0].value = value;
document.querySelector("form[data-check] .act button").click()
"""
_LISTS: Final = (
    Shown("overview", "/"),
    Shown("batches", "/batches"),
    Shown("steps", "/steps"),
    Shown("samples", "/samples"),
    Shown("versions", "/versions"),
    Shown("compare", "/compare"),
    Shown("dead-letters", "/dead-letters"),
    Shown("configuration", "/configuration"),
    Shown("settings", "/configuration?mode=expert"),
    Shown("configuration-checked", "/configuration", act=_POST),
    Shown("local-mesh", "/configuration/mesh"),
)
_DETAILS: Final = {
    "sample": (r"/samples/[\d-]+(?=\")", ("/samples",)),
    "task": (r"/tasks/[^\"?]+", ("/samples",)),
    "step": (r"/steps/\d+", ("/steps",)),
    "batch": (r"/batches/[^\"?]+", ("/steps",)),
    "dead-letter": (r"/dead-letters/[^\"?]+/\d+/\d+", ("/dead-letters",)),
    "confirm": (r"/versions/\d+/serve", ("/versions",)),
    "group": (r"/groups/[\d-]+", ("/steps", r"/steps/\d+")),
}
"""Which link is followed, the first one of its kind, and on which page: by links, one after the other."""
_COLOURS: Final = 48
"""Of a picture of the documentation."""
_UNNAMED: Final = """
[...document.querySelectorAll("a, button, input:not([type=hidden]), select, textarea, img, meter, svg")].filter((one) =>
  !(one.textContent.trim() || one.getAttribute("aria-label") || one.title || one.hasAttribute("alt")
    || one.labels?.length || one.querySelector?.("img[alt]"))).map((one) => one.outerHTML.slice(0, 120))
"""
_REFRESHED: Final = """
(async () => {
  const content = document.getElementById("content");
  for (let i = 0; i < 10; i++) await new Promise((replaced) => {
    new MutationObserver((_, one) => { one.disconnect(); replaced(); }).observe(content, { childList: true });
    document.dispatchEvent(new Event("visibilitychange"));
  });
})()
"""
"""A page that is seen again asks for what is new, as one does that is told of it: ten times."""
_NO_PATHS: Final = """
((from, to) => {
  // News would put it back.
  const content = document.getElementById("content");
  if (content) content.replaceChildren = () => {};
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(from, to);
  for (const one of document.querySelectorAll("input")) one.value = one.value.replaceAll(from, to);
})(%s)
""".replace("%s", f"{json.dumps(str(Path.cwd()))}, '/home/you/trinity-bus'")
"""Whoever looks at a picture need not know in which folder of which machine it was made."""
_TENS: Final = 20
_JUDGE: Final = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
  .filter((one) => one.impact === "serious" || one.impact === "critical")
  .map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`))
"""
_START_S: Final = 60.0
_SETTLE_S: Final = 0.5

type Call = Callable[..., Awaitable[Any]]


async def _look(url: str, folder: Path, chromium: str, axe: str) -> list[str]:
    with tempfile.TemporaryDirectory() as profile:
        process = await asyncio.create_subprocess_exec(
            chromium,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0"),
            *(f"--user-data-dir={profile}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(_START_S):
                port_file = Path(profile) / "DevToolsActivePort"
                while not port_file.is_file() or not (said := port_file.read_text().split()):  # noqa: ASYNC110 - Chromium sets no event
                    await asyncio.sleep(0.1)
            token = os.environ.get("CONSOLE_TOKEN")
            shown = {"Authorization": f"Bearer {token}"} if token else {}
            async with aiohttp.ClientSession() as http:
                return await _visit(http, f"http://127.0.0.1:{said[0]}", url, folder, axe, shown)
        finally:
            process.kill()
            await process.wait()


async def _visit(  # noqa: PLR0917
    http: aiohttp.ClientSession, browser: str, url: str, folder: Path, axe: str, shown: dict[str, str]
) -> list[str]:
    pages = await _pages(http, url, shown)
    async with http.get(f"{browser}/json/list") as answer:
        target = next(one for one in await answer.json() if one["type"] == "page")
    wrong: list[str] = []
    async with http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
        numbers = iter(range(1, 1 << 30))
        errors: list[str] = []

        async def call(method: str, **params: Any) -> Any:
            number = next(numbers)
            await socket.send_json({"id": number, "method": method, "params": params})
            while True:
                told = await socket.receive_json(timeout=_START_S)
                # What is verbose is advice.
                if (
                    told.get("method") in {"Log.entryAdded", "Runtime.exceptionThrown"}
                    and told["params"].get("entry", {}).get("level") != "verbose"
                ):
                    errors.append(str(told["params"])[:300])
                if told.get("id") == number:
                    return told.get("result", {})

        for domain in ("Page", "Log", "Runtime", "Network"):
            await call(f"{domain}.enable")
        for page in pages:
            await call("Network.setExtraHTTPHeaders", headers={} if page.anonymous else shown)
            for width in _WIDTHS:
                for theme in ("light", "dark"):
                    faults = await _shoot(call, url, page, axe, width=width, theme=theme, folder=folder)
                    found = [f"{page.path} {fault}" for fault in faults]
                    found += [f"{page.path}: {error}" for error in errors]
                    # As they are found: what comes later may fail.
                    sys.stdout.write("".join(f"{one}\n" for one in found))
                    sys.stdout.flush()
                    wrong += found
                    errors.clear()
        await call("Network.setExtraHTTPHeaders", headers=shown)
        grown = [f"{page.path} {fault}" for page in _LISTS[:4] for fault in await _grown(call, url, page.path)]
        sys.stdout.write("".join(f"{one}\n" for one in (*grown, *errors)))
        wrong += [*grown, *errors]
    return wrong


async def _pages(http: aiohttp.ClientSession, url: str, shown: dict[str, str]) -> list[Shown]:
    """Return the pages that there are: those of the menu, one of each kind that they lead to, and of each state."""

    async def html(path: str) -> str:
        async with http.get(f"{url}{path}", headers=shown) as answer:
            return unescape(await answer.text())

    pages = list(_LISTS)
    for name, (pattern, way) in _DETAILS.items():
        text = await html(way[0])
        for one in way[1:]:
            found = re.search(one, text)
            text = "" if found is None else await html(found[0])
        if (found := re.search(pattern, text)) is not None:
            pages.append(Shown(name, found[0]))
    if runs := re.findall(r'name="run" value="([^"]+)"', await html("/compare"))[:2]:
        pages.append(Shown("compare-two", "/compare?" + urlencode([("run", run) for run in runs])))
    if slider := re.search(r'type="range"[^>]* min="([\d.]+)" max="([\d.]+)"', await html("/")):
        pages.append(Shown("earlier", f"/?until={(float(slider[1]) + float(slider[2])) / 2:.3f}"))
    if shown:
        pages.append(Shown("login", "/login", anonymous=True))
    return pages


async def _grown(call: Call, url: str, path: str) -> list[str]:
    """Return what a page has more of after much news."""
    await _open(call, f"{url}{path}")
    await call("Performance.enable")
    counts = []
    for tens in (1, _TENS):
        for _ in range(tens):
            await call("Runtime.evaluate", expression=_REFRESHED, awaitPromise=True)
        await call("HeapProfiler.collectGarbage")
        told = (await call("Performance.getMetrics"))["metrics"]
        counts.append({one["name"]: one["value"] for one in told if one["name"] in {"Nodes", "JSEventListeners"}})
    before, after = counts
    # A list that is still filling has some rows more.
    return [
        f"has {after[name]:.0f} {name}, and had {before[name]:.0f}"
        for name in before
        if after[name] > 1.5 * before[name]
    ]


async def _open(call: Call, url: str) -> None:
    await call("Page.navigate", url=url)
    await _loaded(call)


async def _loaded(call: Call) -> None:
    while (await call("Runtime.evaluate", expression="document.readyState"))["result"]["value"] != "complete":  # noqa: ASYNC110 - asked
        await asyncio.sleep(0.1)
    await asyncio.sleep(_SETTLE_S)


async def _shoot(call: Call, url: str, page: Shown, axe: str, *, width: int, theme: str, folder: Path) -> list[str]:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    await call("Emulation.setDeviceMetricsOverride", **size)
    await call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    await _open(call, f"{url}{page.path}")
    if page.act:
        await call("Runtime.evaluate", expression=page.act)
        await asyncio.sleep(_SETTLE_S)
        await _loaded(call)
    shown = (await call("Runtime.evaluate", expression="document.documentElement.scrollWidth"))["result"]["value"]
    unnamed = await call("Runtime.evaluate", expression=_UNNAMED, returnByValue=True)
    await call("Runtime.evaluate", expression=axe)
    judged = await call("Runtime.evaluate", expression=_JUDGE, awaitPromise=True, returnByValue=True)
    await call("Runtime.evaluate", expression=_NO_PATHS)
    picture = await call("Page.captureScreenshot", format="png")
    (folder / f"{page.name}-{width}-{theme}.png").write_bytes(base64.b64decode(picture["data"]))
    too_wide = [f"is {shown} wide in a window of {width}"] if shown > width else []
    faults = [f"({theme}, {width}) {one}" for one in judged["result"]["value"]]
    return too_wide + [f"has no name for {one}" for one in unnamed["result"]["value"]] + faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the console, such as http://127.0.0.1:8900")
    parser.add_argument("--axe", type=Path, required=True, help="axe-core's script")
    parser.add_argument("--folder", type=Path, default=Path("build/console"))
    parser.add_argument("--docs", type=Path, help="folder of the documentation's pictures")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.stderr.write("there is no Chromium on this machine: on Debian, apt-get install chromium\n")
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    wrong = asyncio.run(
        _look(options.url.rstrip("/"), options.folder, chromium, options.axe.read_text(encoding="utf-8"))
    )
    if options.docs is not None:
        for path in sorted(options.folder.glob(f"*-{_WIDTHS[0]}-*.png")):
            name = path.name.replace(f"-{_WIDTHS[0]}-", "-")
            Image.open(path).convert("RGB").quantize(_COLOURS).save(options.docs / f"console-{name}", optimize=True)
    sys.stdout.write(f"{len(wrong)} faults; pictures are in {options.folder}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
