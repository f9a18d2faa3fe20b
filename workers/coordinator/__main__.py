"""``python -m workers.coordinator``: a coordinator with the settings of the environment, until SIGTERM or Ctrl-C."""

import logging
import sys

from trinity_bus.config import Settings
from trinity_bus.errors import TrinityError
from trinity_bus.runtime.service import run_service
from workers.coordinator.service import run


def main() -> None:
    """Run it; what goes wrong is one line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Every metadata refresh of the client would be a line.
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    try:
        settings = Settings()
        run_service(lambda: run(settings))
    except TrinityError as error:
        sys.exit(f"coordinator: {error}")


if __name__ == "__main__":
    main()
