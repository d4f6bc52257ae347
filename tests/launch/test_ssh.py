"""The errors of ssh's messages, and the variables that are sent to another node: tables, without a network."""

from __future__ import annotations

import shlex
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support.documented import ROOT

from shoal.errors import UsageError, WorkerLostError
from shoal.launch.remote import ssh
from shoal.launch.remote.ssh import connection_error, forwarded, refuse_without_ssh

CHANGED = "@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@\nHost key verification failed.\r\n"
STRICT = "No ED25519 host key is known for b and you have requested strict checking.\nHost key verification failed."
BAD_FILE = "/c: line 1: Bad configuration option: x\n/c: terminating, 1 bad configuration options"


@pytest.mark.parametrize(
    ("code", "output", "exit_code", "sentence"),
    [
        (255, "ssh: connect to host b port 22: Connection refused\r\n", 75, "cannot be reached by ssh (ssh: connect"),
        (255, "ssh: connect to host b port 22: Connection timed out", 75, "cannot be reached by ssh ("),
        (255, "Connection timed out during banner exchange", 75, "cannot be reached by ssh (Connection timed out"),
        (255, "", 75, "cannot be reached by ssh (nothing was said)"),
        (255, "ssh: Could not resolve hostname b: Name or service not known", 2, "is not known to ssh (ssh: Could"),
        (255, CHANGED, 2, "has another host key than the one that is known"),
        (255, "Host key verification failed.", 2, "has a host key that is not known here (Host key veri"),
        (255, STRICT, 2, "has a host key that is not known here"),
        (255, "me@b: Permission denied (publickey,password).", 2, "refused the login (me@b: Permission"),
        (255, "Received disconnect from b: Too many authentication failures", 2, "refused the login ("),
        (255, BAD_FILE, 2, "asked for node b"),
        (91, "No such file or directory", 2, f"has no directory {Path.cwd()} (No such file or directory)"),
        (127, "sh: 1: exec: /x/python: not found", 2, f"has no Python at {sys.executable} (sh: 1: exec:"),
        (126, "Permission denied", 2, f"has no Python at {sys.executable} ("),
        (1, "/x/python: No module named shoal", 2, "has no Shoal in"),
        (1, "ModuleNotFoundError: No module named 'shoal'", 2, "has no Shoal in"),
        (1, "ImportError: libfoo.so", 75, "ended the connection before it had said anything (it left with exit code 1"),
        (None, "", 75, "ended the connection before it had said anything (it does not end: nothing was said)"),
    ],
)  # fmt: skip
def test_each_message_of_ssh_has_its_error(code: int | None, output: str, exit_code: int, sentence: str) -> None:
    error = connection_error("b", code, output)
    assert isinstance(error, UsageError if exit_code == 2 else WorkerLostError)
    assert error.exit_code == exit_code
    assert sentence in str(error)
    assert "b" in str(error)


def test_variables_that_results_depend_on_are_forwarded_and_those_of_one_machine_are_not() -> None:
    environ = dict.fromkeys(
        [
            *("PATH", "PYTHONPATH", "CUDA_DEVICE_ORDER", "NCCL_DEBUG", "OMP_NUM_THREADS", "MUJOCO_GL", "WANDB_API_KEY"),
            *("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TMPDIR", "HOME", "SSH_AUTH_SOCK"),
            *("SHOAL_SCRATCH", "RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"),
        ],
        "x",
    )
    crossing = {"PATH", "PYTHONPATH", "CUDA_DEVICE_ORDER", "NCCL_DEBUG", "OMP_NUM_THREADS", "MUJOCO_GL"}
    assert forwarded(environ).keys() == crossing


def test_the_key_of_wandb_is_forwarded_to_the_node_of_rank_0_alone() -> None:
    environ = {"WANDB_API_KEY": "x", "WANDB_IDENTITY_TOKEN_FILE": "x", "WANDB_MODE": "online"}
    assert forwarded(environ).keys() == {"WANDB_MODE"}
    assert forwarded(environ, writes_run=True) == environ


def test_without_ssh_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match=r"there is no ssh here: install OpenSSH's client\.$"):
        refuse_without_ssh(None)


def test_a_configuration_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--ssh-config is .*/config, which is no file"):
        refuse_without_ssh(str(tmp_path / "config"))


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_bootstrap_is_one_word_to_any_shell(shell: str) -> None:
    command = shlex.join([sys.executable, "-I", "-S", "-c", ssh._ONE_WORD])
    assert not set("\n!\\$`") & set(command)
    first = b'{"cwd": "/no/such/directory", "environ": {}}'
    sent = struct.pack("!iii", 0, 0, len(first)) + first  # After two beats.
    done = subprocess.run((shell, "-c", f"exec {command}"), input=sent, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (91, b"No such file or directory")


def test_the_page_about_security_lists_each_variable_that_goes_to_other_machines() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert [name for name in (*ssh.FORWARDED, *ssh.OF_RANK_0) if f"`{name}`" not in page] == []
