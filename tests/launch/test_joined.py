"""How ranks that other programs started meet and agree on one run directory, with stores of torch's."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from torch.distributed import HashStore

from shoal.errors import UsageError
from shoal.launch.joined import share_run_dir
from shoal.launch.rendezvous import Rendezvous, SignedStore
from shoal.plan.ranks import Rank


def all_ranks(make: object) -> list[Path | Exception]:
    """What each of two ranks learns, when rank 0 makes the directory by `make`; rank 1 comes first."""
    store, received = SignedStore(HashStore(), None), dict[int, Path | Exception]()

    def be(number: int) -> None:
        rank = Rank(rank=number, local_rank=number, world_size=2, local_world_size=2)
        try:
            received[number] = share_run_dir(store, rank, 5.0, make)  # pyright: ignore[reportArgumentType]
        except Exception as error:  # noqa: BLE001  Whatever a rank learns.
            received[number] = error

    ranks = [threading.Thread(target=be, args=(number,)) for number in (1, 0)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=30)
    return [received[0], received[1]]


def test_rank_0_makes_one_directory_for_all() -> None:
    calls: list[int] = []

    def make() -> Path:
        calls.append(threading.get_ident())
        return Path("/runs/one")

    assert all_ranks(make) == [Path("/runs/one"), Path("/runs/one")]
    assert len(calls) == 1


def test_a_refusal_of_rank_0_is_raised_in_the_same_words_on_all() -> None:
    def make() -> Path:
        message = "The run directory cannot be made: pass --log-root."
        raise UsageError(message)

    errors = all_ranks(make)
    assert [type(error) for error in errors] == [UsageError, UsageError]
    assert str(errors[0]) == str(errors[1]) == "The run directory cannot be made: pass --log-root."


@pytest.mark.parametrize("words", ["no space left", ""])
def test_no_rank_waits_for_a_rank_0_that_failed(words: str) -> None:
    def make() -> Path:
        raise OSError(words)

    errors = all_ranks(make)
    assert isinstance(errors[0], OSError)
    assert isinstance(errors[1], UsageError)
    assert words in str(errors[1])
    assert str(errors[1])


def test_a_port_of_srun_that_another_program_has_is_not_waited_for(tmp_path: Path) -> None:
    first, second = (Rank(rank=each, local_rank=0, world_size=2, local_world_size=1) for each in (0, 1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        rendezvous = Rendezvous("127.0.0.1", taken.getsockname()[1], "srun/4711.0/0", tmp_path / "secret")
        begun = time.monotonic()
        with pytest.raises(UsageError, match=r"is no store of rank 0's: export another MASTER_PORT before srun\.$"):
            rendezvous.open(second, timeout=20)
        with pytest.raises(
            UsageError, match=r"where the tasks of srun would meet, cannot be used \(Address already in"
        ):
            rendezvous.open(first, timeout=20)
    assert time.monotonic() - begun < 15
