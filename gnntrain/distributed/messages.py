"""Messages of arrays between two processes: a fixed binary format over authenticated connections.

A message is, in little endian:

    kind u8, number of arrays u8, bytes of the head u16
    head: bytes of the text u16, the text in UTF-8,
          then for each array: type u8 (its place in `TYPES`), number of dimensions u8, sizes u64
    the arrays' bytes, in C order

Nothing that arrives names code or is run: neither pickle nor object arrays.

Both ends prove that they know the run's token before the first message (`greeting`, `accept`):

    listener → caller   magic, version, nonce
    caller → listener   magic, version, nonce, HMAC(token, "caller" ‖ both nonces)
    listener → caller   HMAC(token, "listener" ‖ both nonces)
"""

from __future__ import annotations

import hmac
import math
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

VERSION = 1
TYPES = tuple(
    np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64"),
    )
)
MAX_ARRAYS = 255
MAX_DIMENSIONS = 8
MAX_TEXT = 4_000  # characters of a name or an error
_MAX_BYTES = 2**48  # of a message: more is a damaged head

_MAGIC = b"gnntrain"
_NONCE_BYTES = 32
_GREETING = struct.Struct(f"<8sH{_NONCE_BYTES}s")
_REPLY = struct.Struct(f"<8sH{_NONCE_BYTES}s32s")
REPLY_BYTES = _REPLY.size
_PROOF_BYTES = 32
_PREFIX = struct.Struct("<BBH")
_LENGTH = struct.Struct("<H")
_ARRAY = struct.Struct("<BB")

# Blocked calls wake up this often, so that they notice the end of their time, and Python can run
# signal handlers.
_SLICE_SECONDS = 1.0


class Kind(IntEnum):
    """The kind of a message."""

    CALL = 0
    ANSWER = 1
    ERROR = 2
    TRANSIENT = 3  # an error that another try may mend


class Message(NamedTuple):
    """A message that arrived.

    Attributes:
        kind: Its kind.
        text: The name that is called, or the sentence of an error.
        arrays: New, writable arrays.
        num_bytes: What it took on the wire.
    """

    kind: Kind
    text: str
    arrays: list[Array]
    num_bytes: int


class BadMessage(ConnectionError):
    """The other end does not keep to the format."""


def encode(kind: Kind, text: str, arrays: Sequence[Array]) -> list[memoryview]:
    """A message as buffers: the arrays' own memory where it is contiguous.

    Raises:
        TypeError: An array's type is not in `TYPES`.
    """
    if len(arrays) > MAX_ARRAYS:
        raise TypeError(f"{len(arrays)} arrays do not fit into a message of {MAX_ARRAYS}")
    words = text[:MAX_TEXT].encode(errors="backslashreplace")  # a path may be no Unicode
    head, buffers = [_LENGTH.pack(len(words)), words], []
    for array in map(_portable, arrays):
        if array.ndim > MAX_DIMENSIONS:
            raise TypeError(f"an array of {array.ndim} dimensions; at most {MAX_DIMENSIONS}")
        head.append(_ARRAY.pack(TYPES.index(array.dtype), array.ndim))
        head.append(struct.pack(f"<{array.ndim}Q", *array.shape))
        buffers += _bytes_of(array)
    whole = b"".join(head)
    return [memoryview(_PREFIX.pack(kind, len(arrays), len(whole)) + whole), *buffers]


def _portable(array: Array) -> Array:
    portable = array.dtype.newbyteorder("<")
    if portable not in TYPES:
        raise TypeError(f"arrays of {array.dtype} cannot be sent")
    return np.asarray(array, portable, order="C")


def _bytes_of(array: Array) -> list[memoryview]:
    return [array.reshape(-1).view(np.uint8).data] if array.size else []


def _decode(num_arrays: int, head: bytes) -> tuple[str, list[Array]]:
    """The text, and arrays of undefined content.

    Raises:
        BadMessage: The head is damaged.
    """
    try:
        (length,) = _LENGTH.unpack_from(head)
        offset = _LENGTH.size + length
        text = head[_LENGTH.size : offset].decode()
        described = []
        for _ in range(num_arrays):
            number, dimensions = _ARRAY.unpack_from(head, offset)
            shape = struct.unpack_from(f"<{dimensions}Q", head, offset + _ARRAY.size)
            offset += _ARRAY.size + 8 * dimensions
            described.append((TYPES[number], shape))
        if offset != len(head) or any(len(shape) > MAX_DIMENSIONS for _, shape in described):
            raise BadMessage("a message with a damaged head")
        if sum(dtype.itemsize * math.prod(shape) for dtype, shape in described) > _MAX_BYTES:
            raise BadMessage("a message beyond all measure")
        return text, [np.empty(shape, dtype) for dtype, shape in described]
    except (struct.error, UnicodeDecodeError, IndexError, ValueError, MemoryError) as error:
        raise BadMessage(f"a message with a damaged head: {error}") from error


class Connection:
    """One end of an authenticated connection. One thread uses it at a time.

    Args:
        connected: The socket, which this object owns.
        timeout: Seconds without a byte after which `send` and `receive` raise TimeoutError.
    """

    def __init__(self, connected: socket.socket, timeout: float) -> None:
        self._socket = connected
        self._timeout = timeout
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Blocking with a time limit in the kernel: one system call, for which Python releases its
        # lock once, moves a whole array.
        connected.settimeout(None)
        limit = struct.pack("ll", int(_SLICE_SECONDS), int(_SLICE_SECONDS % 1 * 1e6))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def fileno(self) -> int:
        """The socket's number, for selectors."""
        return self._socket.fileno()

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Send an encoded message; return its bytes.

        Raises:
            OSError: The other end has gone, or (TimeoutError) does not read.
        """
        rest, last = list(buffers), time.monotonic()
        while rest:
            try:
                sent = self._socket.sendmsg(rest)
            except BlockingIOError:
                self._check(last, self._timeout)
                continue
            rest, last = _after(rest, sent), time.monotonic()
        return sum(map(len, buffers))

    def receive(self, patience: float | None = None) -> Message:
        """Wait for the next message.

        Args:
            patience: Seconds to wait for its first byte; None: `timeout`.

        Raises:
            OSError: The other end has gone, (TimeoutError) sends nothing, or (BadMessage) does not
                keep to the format.
        """
        prefix = self._read(_PREFIX.size, self._timeout if patience is None else patience)
        kind, num_arrays, head_bytes = _PREFIX.unpack(prefix)
        if kind not in Kind.__members__.values():
            raise BadMessage(f"a message of unknown kind {kind}")
        text, arrays = _decode(num_arrays, self._read(head_bytes, self._timeout))
        num_bytes = _PREFIX.size + head_bytes
        for array in arrays:
            for buffer in _bytes_of(array):
                self._fill(buffer, self._timeout)
            num_bytes += array.nbytes
        return Message(Kind(kind), text, arrays, num_bytes)

    def _read(self, num_bytes: int, patience: float) -> bytes:
        buffer = bytearray(num_bytes)
        self._fill(memoryview(buffer), patience)
        return bytes(buffer)

    def _fill(self, buffer: memoryview, patience: float) -> None:
        last = time.monotonic()
        while buffer:
            try:
                received = self._socket.recv_into(buffer, 0, socket.MSG_WAITALL)
            except BlockingIOError:
                self._check(last, patience)
                continue
            if received == 0:
                raise ConnectionResetError("the connection was closed")
            buffer, last = buffer[received:], time.monotonic()

    @staticmethod
    def _check(last: float, patience: float) -> None:
        if time.monotonic() - last > patience:
            raise TimeoutError("nothing moved")

    def shut_down(self) -> None:
        """End the connection: a thread in `send` or `receive` gets an OSError. Thread-safe."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # already ended by the other side
            return

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def _after(buffers: list[memoryview], sent: int) -> list[memoryview]:
    """The buffers without their first `sent` bytes."""
    for number, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [buffer[sent:], *buffers[number + 1 :]]
        sent -= len(buffer)
    return []


class Greeting:
    """The listener's side of a handshake: `sent` goes out, the caller's reply comes in."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self.sent = _GREETING.pack(_MAGIC, VERSION, self._nonce)

    def accept(self, reply: bytes) -> bytes | None:
        """This side's proof if the caller knows the token, else None.

        Args:
            reply: `REPLY_BYTES` from the caller.
        """
        magic, version, nonce, proof = _REPLY.unpack(reply)
        right = _proof(self._token, b"caller", self._nonce, nonce)
        if (magic, version) != (_MAGIC, VERSION) or not hmac.compare_digest(proof, right):
            return None
        return _proof(self._token, b"listener", self._nonce, nonce)


def connect(address: tuple[str, int], token: bytes, timeout: float) -> Connection:
    """A connection to a listener that knows the token.

    A listener under a flood of strangers may drop a caller before it has proved itself; the caller
    tries again.

    Raises:
        OSError: The address cannot be reached, no answer came in `timeout` seconds, or (BadMessage)
            something else listens there.
    """
    deadline = time.monotonic() + timeout
    while True:
        remaining = max(0.001, deadline - time.monotonic())
        connected = socket.create_connection(address, remaining)
        try:
            _prove(connected, token)
            return Connection(connected, timeout)
        except (ConnectionResetError, BrokenPipeError):
            connected.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        except BaseException:
            connected.close()
            raise


def _prove(connected: socket.socket, token: bytes) -> None:
    """The caller's side of a handshake."""
    magic, version, nonce = _GREETING.unpack(_received(connected, _GREETING.size))
    if magic != _MAGIC:
        raise BadMessage("what listens there is not a rank of gnntrain")
    if version != VERSION:
        raise BadMessage(
            f"its version of gnntrain speaks version {version} of the exchange, this one {VERSION}"
        )
    own = secrets.token_bytes(_NONCE_BYTES)
    proof = _proof(token, b"caller", nonce, own)
    connected.sendall(_REPLY.pack(_MAGIC, VERSION, own, proof))
    right = _proof(token, b"listener", nonce, own)
    if not hmac.compare_digest(_received(connected, _PROOF_BYTES), right):
        raise BadMessage("what listens there does not know this run's token")


def _received(connected: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes:
        chunk = connected.recv(num_bytes - len(received))
        if not chunk:
            raise ConnectionResetError("the connection was closed")
        received += chunk
    return received


def _proof(token: bytes, side: bytes, listener_nonce: bytes, caller_nonce: bytes) -> bytes:
    return hmac.digest(token, side + listener_nonce + caller_nonce, "sha256")
