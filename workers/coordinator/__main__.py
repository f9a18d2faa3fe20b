"""``python -m workers.coordinator``: a coordinator with the settings of the environment, until SIGTERM or Ctrl-C."""

import sys

from schemas.errors import printable
from trinity_bus.config import Settings
from trinity_bus.errors import TrinityError
from trinity_bus.runtime.secrecy import keep_secrets
from trinity_bus.runtime.service import run_service
from trinity_bus.telemetry.logs import console
from workers.coordinator.service import run


def main() -> None:
    """Run it; what goes wrong is one line."""
    console()
    try:
        settings = Settings()
        keep_secrets()
        run_service(lambda: run(settings))
    except TrinityError as error:
        sys.exit(f"coordinator: {printable(str(error))}")


if __name__ == "__main__":
    main()
