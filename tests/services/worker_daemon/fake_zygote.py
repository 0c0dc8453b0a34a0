"""A zygote by script, exec'ed as the daemon execs one: `--ctl-fd N` among its arguments, FAKE_ZYGOTE for its ways.

fork: forks for real · hang: takes requests and answers none · refuse: answers ERR · mute: is never ready ·
die: exits before it is ready · crash: exits at an import · stuck: hangs at one · unclean: says that it may not serve ·
once: dies at its first request

HOW:A,B is HOW while its imports have A or B, of which it blames the first; with neither it forks.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

import msgpack


def main() -> None:
    how, _, unfit = os.environ["FAKE_ZYGOTE"].partition(":")
    imports = sys.argv[sys.argv.index("--imports") + 1].split(",")
    found = [name for name in unfit.split(",") if name in imports]
    how, culprit = ("fork", "") if unfit and not found else (how, found[0] if found else "math")
    control = socket.socket(fileno=int(sys.argv[sys.argv.index("--ctl-fd") + 1]))
    print("the fake zygote says: starting", flush=True)
    if how == "die":
        sys.exit(3)
    if how == "crash":
        send(control, {"t": "IMPORTING", "name": culprit})
        sys.exit(3)
    if how == "stuck":
        send(control, {"t": "IMPORTING", "name": culprit})
        time.sleep(1000)
    if how == "unclean":
        text = "FORBIDDEN_MODULE: ray"
        send(control, {"t": "ERR", "id": 0, "errno": 0, "text": text, "verdict": "grpc-like", "culprit": culprit})
        sys.exit(3)
    if how == "mute":
        time.sleep(1000)
    send(control, {"t": "READY", "v": 1, "imports": [{"name": name, "seconds": 0.0} for name in imports], "failed": []})
    while True:
        data, fds, _flags, _address = socket.recv_fds(control, 65536, 8)
        if not data:
            return
        answer(control, how, msgpack.unpackb(data), fds)
        for fd in fds:
            os.close(fd)


def answer(control: socket.socket, how: str, request: Any, fds: list[int]) -> None:
    if how == "once":
        os._exit(1)
    elif how == "refuse":
        send(control, {"t": "ERR", "id": request["id"], "errno": 12, "text": "no memory"})
    elif how == "fork":
        send(control, {"t": "FORKED", "id": 10_000, "pid": 1})  # an answer to an earlier request
        process = subprocess.Popen(["cat"], stdin=fds[0], stdout=fds[0])
        send(control, {"t": "FORKED", "id": request["id"], "pid": process.pid})


def send(control: socket.socket, message: dict[str, Any]) -> None:
    control.send(msgpack.packb(message))


if __name__ == "__main__":
    main()
