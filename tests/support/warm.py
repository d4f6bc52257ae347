"""The installed commands, started from a process that has imported everything already.

Importing torch and its compiler takes longer than most commands that the tests run. `WarmCommands` imports once, and
forks for each command: the executables in its folder, to be put first on PATH, hand their arguments, working directory,
environment and standard streams over to it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import NoReturn, Self

NAMES = ("train", "play", "evaluate", "shoal")

IMPORTED = (
    *("mujoco", "mujoco_warp", "onnx", "onnxruntime", "onnxscript", "rsl_rl.algorithms", "tensordict", "torch._dynamo"),
    *("onnxscript.function_libs.torch_lib.ops", "torch._functorch.aot_autograd", "torch.export", "torch.onnx"),
    *("torch.utils.tensorboard", "torchrunx", "tyro", "warp"),
    *("shoal.cli.main", "shoal.cli.parse", "shoal.envs.vec_env", "shoal.jobs.worker", "shoal.learn.export"),
    *("shoal.learn.loop", "shoal.learn.rsl_rl.learner", "shoal.mdp.task", "shoal.worker"),
)
"""What most commands import. None of them may start a thread as it is imported: it would be lost in a fork."""

_CLIENT = """#!{python} -IS
import json, os, socket, sys
if "--video" in sys.argv:  # MuJoCo reads as it is imported which renderer to use.
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
asked = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(asked)
    os._exit(int.from_bytes(server.recv(1) or b"\\xff", "big"))
"""


class WarmCommands:
    """A folder of commands that start at once, while it is open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        address = folder / "socket"
        for name in NAMES:
            real = str(Path(sys.executable).with_name(name))
            path = folder / name
            path.write_text(_CLIENT.format(python=sys.executable, real=real, name=name, address=str(address)))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(address)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"

    def __enter__(self) -> Self:
        """Return the commands."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process that forks."""
        self._server.terminate()
        self._server.communicate()


def serve(address: str) -> NoReturn:
    """Import everything, and fork for each connection until this process is ended."""
    for name in IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"ready\n")
        while True:
            client, _ = listener.accept()
            with client:
                if os.fork() == 0:
                    listener.close()
                    _answer(client)


def _answer(client: socket.socket) -> NoReturn:
    """Run one command in a process of its own, and send its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(client, 4, 3)
    with client.makefile("rb") as asked:
        name, words, cwd, environ = json.loads(asked.read(int.from_bytes(head, "big")))
    if (command := os.fork()) == 0:
        run(name, words, cwd, environ, streams)
    _, status = os.waitpid(command, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        client.sendall(bytes([code if code >= 0 else 128 - code]))
    os._exit(0)


def run(name: str, words: list[str], cwd: str, environ: dict[str, str], streams: list[int]) -> NoReturn:
    """Run an installed command in this process, which is a fork, and end it with the command's exit code."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = [str(Path(sys.executable).with_name(name)), *words]
    from shoal.cli import start

    code = 1
    try:
        getattr(start, name)()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 - Python would print it, too
        sys.excepthook(type(error), error, error.__traceback__)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
