"""A port for members, of the trainer or of a member that passes versions on: whoever connects proves itself first.

::

    LISTENING --connection--> a thread: (TLS), challenge, proof --> attend(channel, who) --> closed, or kept
        |                                   |
        |                                   +--late, no proof, not a member: closed without a word
        +--close--> (gone; every connection is cut)

Strangers are bounded: beyond ``MAX_STRANGERS`` connections that have not proven themselves the oldest is cut, and each
has some seconds. So are members: each has ``PER_MEMBER`` connections, the newest ones, in all epochs together.
Failures: see the drawing; a line in the log names the address, once in a while. A member may have read its announcement
before the trainer has, and is then waited for.
"""

import logging
import socket
import ssl
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

from schemas.errors import printable
from trinity_bus import awake
from trinity_bus.weights.channel import MEETING_S, Channel, FindSecret, admit
from trinity_bus.weights.errors import LinkError, WeightTransferError

_log = logging.getLogger(__name__)

MAX_STRANGERS = 64
PER_MEMBER = 32  # Each worker of an engine that is split over GPUs has one, and may begin the next before it has ended
_ANNOUNCEMENTS = 16  # Whose members are let in. A member of an older one was named again since, if it is wanted.
_LINE_S = 10.0  # Between two lines about strangers: anyone can connect, as often as they like
_ENDING_S = 1.0  # How long the end waits for the threads of connections, whose waits end within moments

# Serves a member, in the thread of its connection. True where the channel is kept, and closed by its keeper.
type Attend = Callable[[Channel, str], bool]


class Keyring:
    """Secrets of the newest announcements. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        # Before the explorer's name, that of its members; who they are, where that is known; and the secret
        self._known: deque[tuple[str, frozenset[str] | None, bytes]] = deque(maxlen=_ANNOUNCEMENTS)

    def add(self, prefix: str, secret: bytes, explorers: Iterable[str] | None = None) -> None:
        """Let the members of an announcement in, from now on. ``explorers``: who they are; by default, whoever comes.

        ``prefix``: ``{trainer_incarnation}/{epoch}/``.
        """
        known = prefix, None if explorers is None else frozenset(explorers), secret
        with self._changed:
            if known not in self._known:
                self._known.append(known)
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._known.clear()

    def find(self, who: str, is_right: Callable[[bytes], bool], deadline: float) -> bytes | None:
        """Return the secret of a member that is the right one; None where there is none by the deadline."""
        with self._changed:
            while not self._closed:
                found = next(filter(is_right, self._secrets(who)), None)
                if found is not None:
                    return found
                left = deadline - awake.now()
                if left <= 0:
                    break
                self._changed.wait(left)
            return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _secrets(self, who: str) -> list[bytes]:
        return [
            secret
            for prefix, explorers, secret in self._known
            if who.startswith(prefix) and (explorers is None or who.removeprefix(prefix) in explorers)
        ]


class PeerListener:
    """Listens for members on the first free one of ``ports`` (0: any) of ``host``; LinkError where there is none.

    ``together``: all connections share ``PER_MEMBER``: who is let in under any name may take as many as it likes.
    ``what``: the connections' purpose, for the log.
    """

    def __init__(
        self,
        host: str,
        ports: Sequence[int],
        *,
        timeout_s: float,
        attend: Attend,
        find_secret: FindSecret,
        tls: ssl.SSLContext | None = None,
        together: bool = False,
        what: str = "weights",
    ) -> None:
        self._find_secret = find_secret
        self._together = together
        self._what = what
        self._timeout_s = timeout_s
        self._attend = attend
        self._tls = tls
        self._lock = threading.Lock()
        self._strangers: OrderedDict[socket.socket, None] = OrderedDict()
        self._members: dict[str, list[Channel]] = {}
        self._threads: set[threading.Thread] = set()
        self._closed = threading.Event()
        self._silent_until = 0.0
        self._listener = _listen(host, ports, what)
        self.address: tuple[str, int] = host, self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name=f"{what}-control", daemon=True).start()

    def close(self) -> None:
        """Stop listening, cut all connections, and see their threads end."""
        # Before the process does: a thread that comes back from torch when the interpreter is gone aborts it.
        self._closed.set()
        with self._lock:
            strangers = list(self._strangers)
        # Closing alone does not wake a thread that waits in ``accept``.
        for one in (self._listener, *strangers):
            _shut(one)
        self.cut()
        self._listener.close()
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        until = awake.now() + _ENDING_S
        for thread in threads:
            awake.join(thread, until - awake.now())

    def cut(self) -> None:
        with self._lock:
            channels = [channel for channels in self._members.values() for channel in channels]
        for channel in channels:
            channel.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                # Such as too many open files: it may pass, and the listener must outlive it.
                _log.error("a member could not be let in: %s", error)
                self._closed.wait(0.1)
                continue
            with self._lock:
                self._strangers[connection] = None
                if len(self._strangers) > MAX_STRANGERS:
                    oldest, _ = self._strangers.popitem(last=False)
                    # Its own thread closes it.
                    _shut(oldest)
            if self._closed.is_set():
                _shut(connection)
            thread = threading.Thread(
                target=self._serve, args=(connection, str(address[0])), name=f"serve-{self._what}-to", daemon=True
            )
            try:
                with self._lock:
                    # Before it may have ended; and whoever closes joins what has begun.
                    thread.start()
                    self._threads.add(thread)
            except RuntimeError as error:
                # This process has as many threads as it may have: that may pass as well.
                with self._lock:
                    self._strangers.pop(connection, None)
                connection.close()
                self._say(f"a connection for {self._what} from {printable(str(address[0]))} was closed: {error}")
                self._closed.wait(0.1)

    def _serve(self, connection: socket.socket, address: str) -> None:
        kept = False
        channel: Channel | None = None
        who = ""
        try:
            connection.settimeout(min(self._timeout_s, MEETING_S))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = encrypted = self._wrap(connection, self._tls)
                encrypted.do_handshake()
            channel = Channel(connection, timeout_s=self._timeout_s, cancelled=self._closed)
            who = admit(channel, self._find_secret)
            self._let_in(connection, channel, who)
            kept = self._attend(channel, who)
        except (WeightTransferError, OSError) as error:
            self._say(f"a connection for {self._what} from {address} came to nothing: {printable(str(error))}")
        finally:
            with self._lock:
                self._strangers.pop(connection, None)
            if not kept:
                if channel is not None:
                    self.close_channel(channel, who)
                connection.close()
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _wrap(self, connection: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
        wrapped = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            # It is the one that can be cut from now on.
            self._strangers.pop(connection, None)
            self._strangers[wrapped] = None
        return wrapped

    def _say(self, line: str) -> None:
        with self._lock:
            now = awake.now()
            if now < self._silent_until:
                return
            self._silent_until = now + _LINE_S
        _log.warning("%s", line)

    def close_channel(self, channel: Channel, who: str) -> None:
        """Close a channel; its keeper calls it, too."""
        channel.close()
        whose = self._whose(who)
        with self._lock:
            left = [known for known in self._members.get(whose, ()) if known is not channel]
            if left:
                self._members[whose] = left
            else:
                self._members.pop(whose, None)

    def _whose(self, who: str) -> str:
        # Whose connections are bounded together: a member has another name in each epoch (``member_name``).
        return "" if self._together else who.split("/", 2)[-1]

    def _let_in(self, connection: socket.socket, channel: Channel, who: str) -> None:
        with self._lock:
            if self._closed.is_set():
                raise LinkError("this side ends")
            self._strangers.pop(connection, None)
            known = self._members.setdefault(self._whose(who), [])
            known.append(channel)
            surplus = known[:-PER_MEMBER]
            del known[:-PER_MEMBER]
        for old in surplus:
            old.close()


def _listen(host: str, ports: Sequence[int], what: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    refused: OSError | None = None
    for port in ports:
        try:
            return socket.create_server((host, port), family=family, backlog=MAX_STRANGERS)
        except OSError as error:
            refused = error
    tried = str(ports[0]) if len(ports) == 1 else f"{ports[0]} to {ports[-1]}"
    raise LinkError(f"cannot listen on {host!r} for {what}, port {tried}: {refused}") from refused


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        _log.debug("a socket was shut already")
