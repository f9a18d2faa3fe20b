"""The section ``access``: users' passwords and quotas."""

from typing import Annotated

from pydantic import Field, SecretStr

from trinity_bus.config.section import Section
from trinity_bus.config.values import Count


class AccessSettings(Section):
    """Passwords that ``trinity-bus access apply`` gives to the mesh's users, on a cluster that checks rights."""

    coordinator_password: SecretStr | None = None
    """Of the coordinators. Unset, here and below: the user's password stays as it is. Services do not read these: they
    log in with ``kafka.sasl_username`` and ``kafka.sasl_password``."""
    explorer_password: SecretStr | None = None
    """Of the explorers."""
    trainer_password: SecretStr | None = None
    """Of the trainer."""
    taskset_password: SecretStr | None = None
    """Of the tasksets."""
    gateway_password: SecretStr | None = None
    """Of the gateways."""
    producer_password: SecretStr | None = None
    """Of programs that send tasks and batches of their own: clients in any language."""
    operator_password: SecretStr | None = None
    """Of who runs the mesh: the command line; all that producers may, and ending others' batches, and versions."""
    admin_password: SecretStr | None = None
    """Of who creates the topics."""
    producer_write_bytes_s: Count | None = None
    """Bytes a second that all producers together may send to a broker, before it slows them down. Unset, here and
    below: any; ``trinity-bus access apply`` takes a quota away that was set before."""
    producer_read_bytes_s: Count | None = None
    """Bytes a second that they may read from a broker."""
    producer_request_percent: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Share of the time of one of a broker's threads that their requests may take, in percent: 100 is one thread."""
