"""The first of the processes that the demo's services are forked from, see ``preloads``.

It begins before the demo knows its settings or has imported them: what starts a second earlier ends a second earlier.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from trinity_bus.runners.confinement import environment
from trinity_bus.runtime.preload import Preload
from workers.demo.options import DemoOptions


@contextmanager
def begun_first(options: DemoOptions) -> Iterator[Preload]:
    """Provide it; it ends with the block, with all that it has forked."""
    options.logs.mkdir(parents=True, exist_ok=True)
    functions, main = ["workers.demo.preloads:import_shared"], "workers.cli.app:main"
    env, log = environment(os.environ, None), options.log("preload")
    with Preload.begin(functions, name="preload", main=main, env=env, output=log) as shared:
        yield shared
