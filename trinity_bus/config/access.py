"""The section ``access``: users' passwords and quotas."""

from typing import Annotated

from pydantic import Field, SecretStr

from trinity_bus.config.section import Section
from trinity_bus.config.values import Count


class AccessSettings(Section):
    """Passwords and quotas that ``trinity-bus access apply`` sets for the mesh's users."""

    coordinator_password: SecretStr | None = None
    """Of the coordinators. Unset, here and below: the password is not changed. Services do not read these; they log in
    with ``kafka.sasl_username`` and ``kafka.sasl_password``."""
    explorer_password: SecretStr | None = None
    """Of the explorers."""
    trainer_password: SecretStr | None = None
    """Of the trainer."""
    taskset_password: SecretStr | None = None
    """Of the task sets."""
    gateway_password: SecretStr | None = None
    """Of the gateways."""
    producer_password: SecretStr | None = None
    """Of programs that send their own tasks and batches, in any language."""
    operator_password: SecretStr | None = None
    """Of operators, who use the command line: all rights of producers, ending others' batches, and versions."""
    admin_password: SecretStr | None = None
    """Of the user that creates topics."""
    producer_write_bytes_s: Count | None = None
    """Bytes a second that all producers together may send to a broker before it throttles them. Unset, here and below:
    unlimited; ``trinity-bus access apply`` removes an earlier quota."""
    producer_read_bytes_s: Count | None = None
    """Bytes a second that all producers together may read from a broker."""
    producer_request_percent: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Share of a broker thread's time for their requests, in percent: 100 is one thread."""
