"""Makes a cluster agree with the table of rights: users' passwords, who may do what, and how much of it.

Needs a user who may alter the cluster: a super user, or one with ``Alter`` on it. What is there already stays; rights
that a user of the mesh has and the table does not know are taken away, so that an upgrade also narrows. Rights of other
users are not looked at.

Failures: a refusal, and a cluster without an authorizer, are a ``BusError`` that names the user or the right. What was
done until then stays done, and doing it again goes on from there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import for_code

from trinity_bus.bus.administration.access import USERS, Kind, Operation, Right, rights, user_name
from trinity_bus.bus.administration.requests import set_passwords, set_quotas
from trinity_bus.bus.client.connection import administrator, kafka_errors
from trinity_bus.bus.client.internals import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest, ask
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError

_ANY: Final = 1
_LITERAL: Final = 3
_PREFIXED: Final = 4
_ALLOW: Final = 3
_EVERYWHERE: Final = "*"
_SECURITY_DISABLED: Final = 54


@dataclass(frozen=True, slots=True)
class Applied:
    passwords: int
    given: int  # rights that users did not have yet
    taken: int  # rights that they no longer have


# User, one of ``USERS``, to quota, one of ``requests``, to its value; None takes it away.
type Quotas = Mapping[str, Mapping[str, float | None]]


async def apply_access(settings: KafkaSettings, passwords: Mapping[str, str], quotas: Quotas | None = None) -> Applied:
    """Set passwords and quotas (absent users keep theirs), and give every user the rights of the table, no others."""
    async with administrator(settings, "trinity-bus-access") as admin:
        with kafka_errors("set up access"):
            applied = await _apply(admin, settings.namespace, passwords)
            if quotas:
                named = {user_name(settings.namespace, user): own for user, own in quotas.items()}
                answer = await ask(admin, set_quotas(named))
                for code, message, _ in answer.entries:
                    _check(code, message, f"set the quotas of {', '.join(named)}")
            return applied


async def _apply(admin: AIOKafkaAdminClient, namespace: str, passwords: Mapping[str, str]) -> Applied:
    if passwords:
        named = {user_name(namespace, user): password for user, password in passwords.items()}
        response = await ask(admin, set_passwords(named))
        for user, code, message, *_ in response.results:
            _check(code, message, f"set the password of {user}")
    given = taken = 0
    for user in USERS:
        principal = f"User:{user_name(namespace, user)}"
        wanted, found = rights(namespace, user), await _rights_of(admin, principal)
        if missing := sorted(wanted - found):
            answer = await ask(admin, _GiveRights(principal, missing))
            _check_all(answer.creation_responses, f"let {principal}", missing)
        if stale := sorted(found - wanted):
            answer = await ask(admin, _TakeRights(principal, stale))
            _check_all(answer.filter_responses, f"no longer let {principal}", stale)
        given, taken = given + len(missing), taken + len(stale)
    return Applied(len(passwords), given, taken)


async def _rights_of(admin: AIOKafkaAdminClient, principal: str) -> frozenset[Right]:
    response = await ask(admin, DescribeAclsRequest(_ANY, None, _ANY, principal, None, _ANY, _ALLOW))
    _check(response.error_code, response.error_message, f"read the rights of {principal}")
    kinds, operations = set(Kind), set(Operation)
    return frozenset(
        Right(Kind(kind), name, Operation(operation), pattern == _PREFIXED)
        for kind, name, pattern, entries in response.resources
        for _, host, operation, _ in entries
        if kind in kinds and operation in operations and host == _EVERYWHERE
    )


class _Rights:
    # Many rows in one request; the library's own requests have one each.
    def __init__(self, principal: str, rights: Iterable[Right]) -> None:
        self._rows = [
            (r.kind, r.name, _PREFIXED if r.prefix else _LITERAL, principal, _EVERYWHERE, r.operation, _ALLOW)
            for r in rights
        ]

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._rows)


class _GiveRights(_Rights, CreateAclsRequest):  # type: ignore[misc]  # the client library is untyped here
    pass


class _TakeRights(_Rights, DeleteAclsRequest):  # type: ignore[misc]  # likewise
    pass


def _check_all(results: Iterable[tuple[int, str | None]], doing: str, rights: Iterable[Right]) -> None:
    for (code, message, *_), right in zip(results, rights, strict=True):
        what = f"{right.operation.name.lower()} {right.kind.name.lower()} {right.name}{'*' if right.prefix else ''}"
        _check(code, message, f"{doing} {what}")


def _check(code: int, message: str | None, doing: str) -> None:
    if code == _SECURITY_DISABLED:
        raise BusError(
            f"{doing}: the cluster checks no rights; its brokers need authorizer.class.name, such as "
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        )
    if code:
        raise BusError(f"{doing}: {message or for_code(code).__name__}")
