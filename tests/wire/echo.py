"""A process that echoes: python echo.py NAME ADDRESS [--shared] [--checked] [--key FILE]. Ends on the word `stop`."""

from __future__ import annotations

import sys

from heterps.wire import Channel, Checked, ServerChannel, Shared, SocketOptions, load_keys


def main(name: str, address: str, *words: str) -> None:
    keys = load_keys(words[words.index("--key") + 1]) if "--key" in words else None
    channel: Channel = ServerChannel(name, address, keys=keys, options=SocketOptions(open_loopback=True))
    sys.stdout.write(f"{channel.address}\n")  # type: ignore[attr-defined]
    sys.stdout.flush()
    channel = Shared(channel) if "--shared" in words else channel
    channel = Checked(channel) if "--checked" in words else channel
    while (received := channel.receive(60)) is not None:
        peer, parts = received
        channel.send(peer, parts)
        is_end = bytes(parts[0]) == b"stop"
        del received, parts  # a block of shared memory is free when nothing looks at it
        if is_end:
            break
    channel.receive(0.2)
    channel.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
