"""Waits for all runs of a workflow in threads of one process.

A process that waits is mostly an interpreter and its modules: for hundreds of runs, that is
gigabytes of a login node. Here a run costs a thread, and what Snakemake started for it is a small
shell, its client. The client's end ends the wait, as if it had waited itself; its Ctrl-C is the
run's alone.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from workflow_lib.launch import interruption, messages
from workflow_lib.launch.__main__ import see_to_its_end
from workflow_lib.launch.interruption import AbandonedRunError, Wishes
from workflow_lib.launch.wait_client import ARENAS

#: a server without a client ends after this long
_IDLE_S = 10.0
#: how long a client may take to say what it wants
_PATIENCE_S = 5.0
_LONGEST_REQUEST = 65536
_STACK_BYTES = 1 << 20


@dataclass(frozen=True)
class Client:
    """Who waits for a run, and what is to be told to whom."""

    connection: socket.socket
    directory: Path
    scheduler: str
    #: where its messages go
    descriptor: int
    wishes: Wishes = field(default_factory=Wishes)

    def serve(self) -> None:
        """See to the run, and tell its exit code. In a thread of its own."""
        with contextlib.suppress(OSError):  # it went away just now
            try:
                code = self._seen_to()
                if code is not None:
                    self.connection.sendall(f"{code}\n".encode())
            finally:
                # Whatever happened here, a client must not wait for ever.
                self.connection.shutdown(socket.SHUT_RDWR)

    def _seen_to(self) -> int | None:
        """The run's exit code; None where nobody is there any more."""
        stream = open(self.descriptor, "w", encoding="utf-8", errors="replace")  # noqa: PTH123, SIM115
        messages.tell(stream)
        interruption.heed(self.wishes)
        try:
            return see_to_its_end(self.directory, self.scheduler)
        except AbandonedRunError:
            return None
        except Exception:  # told to whom it concerns: the other runs go on
            messages.say(traceback.format_exc())
            return 1
        finally:
            with contextlib.suppress(OSError):  # nobody may be left to read the last of it
                stream.close()


def serve(listener: socket.socket, address: Path) -> None:
    """Serve clients until none has been there for a while."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        clients = 0
        while True:
            events = selector.select(_IDLE_S)
            if not events and not clients:
                if not address.exists():
                    return
                address.unlink()  # whoever has connected just before still has its turn
            for key, _ in events:
                if key.data is None:
                    client = _accepted(listener)
                    if client is not None:
                        selector.register(client.connection, selectors.EVENT_READ, client)
                        threading.Thread(target=client.serve, daemon=True).start()
                        clients += 1
                elif _read(key.data):
                    key.data.wishes.interrupt()
                else:
                    key.data.wishes.abandon()
                    selector.unregister(key.data.connection)
                    key.data.connection.close()
                    clients -= 1


def main() -> None:
    """``python -m workflow_lib.launch.wait_server <descriptor> <address>``."""
    from workflow_lib.launch import submit  # noqa: F401  # before threads come to import it

    if sys.argv[3:] == ["alone"]:
        del os.environ[ARENAS]  # it is meant for this process: jobs inherit what it has
    threading.stack_size(_STACK_BYTES)
    serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))


def _read(client: Client) -> bool:
    """Whether the client says something; False at its end."""
    try:
        return bool(client.connection.recv(_LONGEST_REQUEST))
    except ConnectionError:
        return False


def _accepted(listener: socket.socket) -> Client | None:
    """The next client; None where it goes away before it has said what it wants."""
    connection, _ = listener.accept()
    connection.settimeout(_PATIENCE_S)
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(descriptors.itemsize)
    try:
        text, controls, _, _ = connection.recvmsg(_LONGEST_REQUEST, room)
    except (TimeoutError, ConnectionError):
        connection.close()
        return None
    connection.settimeout(None)
    for level, kind, content in controls:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content)
    if not text or len(descriptors) != 1:
        connection.close()
        return None
    os.set_inheritable(descriptors[0], False)
    said = json.loads(text)
    return Client(connection, Path(said["directory"]), said["scheduler"], descriptors[0])


if __name__ == "__main__":
    main()
