"""Which machines a command asks for: what the flags say together, and what they cannot say.

Whether the machines exist, and agree with each other, is found out later.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.config.train import TrainConfig

_HIGHEST_PORT = 65535
_SLURM = "slurm"


def number_of_nodes(nnodes: str) -> tuple[int, int]:
    """Return the least and the largest number of machines that `--nnodes` asks for.

    Raises:
        UsageError: It is no number from 1, and no two of them in order.
    """
    match = re.fullmatch(r"([0-9]{1,6})(?::([0-9]{1,6}))?", nnodes.strip())
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        _refuse(
            f"--nnodes is '{nnodes}', but must be a number of machines or the least and the largest one",
            "pass --nnodes 2, or --nnodes 1:2",
        )
    return least, most


def check_machines(config: TrainConfig) -> None:
    """Refuse flags about machines that contradict each other.

    Raises:
        UsageError: They do, or one of them would do nothing.
    """
    if not 1 <= config.master_port <= _HIGHEST_PORT:
        _refuse(
            f"--master-port is {config.master_port}, but a port is a number from 1 to {_HIGHEST_PORT}",
            "pass --master-port 29500",
        )
    if config.hosts:
        _check_hosts(config)
    elif config.ssh_config is not None:
        _refuse("--ssh-config was passed without --hosts, so nothing is reached by ssh", "pass --hosts too, or neither")
    if config.nnodes is not None:
        _check_nodes(config, config.nnodes)
        return
    alone = "--node-rank" if config.node_rank is not None else "--master-addr" if config.master_addr else None
    if alone is not None:
        _refuse(f"{alone} was passed without --nnodes, so there is one machine", "pass --nnodes 2, say, or neither")


def _check_hosts(config: TrainConfig) -> None:
    twice = sorted({host for host in config.hosts if config.hosts.count(host) > 1})
    if twice:
        _refuse(f"--hosts names {twice[0]} more than once", "name each machine once; --nproc-per-node adds workers")
    odd = next((host for host in config.hosts if not host or host.startswith("-") or not host.isprintable()), None)
    if odd is not None:
        _refuse(f"--hosts names {odd!r}, which is no name of a machine", "pass names or addresses, as ssh takes them")
    if _SLURM in config.hosts and len(config.hosts) > 1:
        _refuse("--hosts slurm stands for all machines of the allocation", "pass it alone, or names alone")
    if config.nnodes is not None:
        _refuse(
            "--hosts and --nnodes exclude each other: with --hosts one command reaches all machines, with --nnodes it "
            "is typed on each",
            "pass one of them",
        )


def _check_nodes(config: TrainConfig, nnodes: str) -> None:
    least, most = number_of_nodes(nnodes)
    if most == 1:
        return
    if config.node_rank is None or config.master_addr is None:
        missing = "--node-rank" if config.node_rank is None else "--master-addr"
        _refuse(
            f"--nnodes {nnodes} was passed without {missing}",
            "pass --node-rank with this machine's number, and --master-addr with an address of machine 0",
        )
    if config.node_rank >= most:
        _refuse(
            f"--node-rank is {config.node_rank}, but of {most} machines the last is number {most - 1}",
            f"pass --node-rank 0 to {most - 1}, another one on each machine",
        )
    if least < most and not config.max_restarts:
        _refuse(
            f"--nnodes {nnodes} lets training go on when a machine is lost, but without restarts it cannot",
            "pass --max-restarts 3, say",
        )


def _refuse(what_is_true: str, remedy: str) -> NoReturn:
    message = f"{what_is_true}: {remedy}."
    raise UsageError(message)
