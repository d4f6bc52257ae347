"""SLURM's one word for many machines, expanded."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.plan.slurm import allocated_hosts, expand_hosts


@pytest.mark.parametrize(
    ("word", "hosts"),
    [
        ("a", "a"),
        ("a,b", "a b"),
        ("a[1-3]", "a1 a2 a3"),
        ("a[01-03,7],b", "a01 a02 a03 a7 b"),
        ("gpu-[098-101]", "gpu-098 gpu-099 gpu-100 gpu-101"),
        ("a[9-11]", "a9 a10 a11"),
        ("rack[1-2]node[3,5]", "rack1node3 rack1node5 rack2node3 rack2node5"),
        ("a[1-2].example.org,c-2", "a1.example.org a2.example.org c-2"),
        (" a[2,1] ", "a2 a1"),
        ("a,a[1],a", "a a1"),
    ],
)
def test_a_list_is_expanded_in_its_order(word: str, hosts: str) -> None:
    assert expand_hosts(word) == tuple(hosts.split())


@pytest.mark.parametrize(
    "word", ["a[", "a]", "a[]", "a[1-]", "a[2-1]", "a[x]", ",", "a,,b", "a[1[2]]", "a[1-999999999]"]
)
def test_what_is_no_list_is_refused_with_an_example(word: str) -> None:
    with pytest.raises(UsageError, match=r"which is no list of machines such as a\[01-03,7\],b: name them in --hosts"):
        expand_hosts(word)


def test_the_allocation_is_in_the_environment() -> None:
    assert allocated_hosts({"SLURM_JOB_NODELIST": "a[1-2]"}) == ("a1", "a2")
    assert allocated_hosts({"SLURM_NODELIST": "b"}) == ("b",)


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_NODELIST": " "}])
def test_outside_an_allocation_it_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST is not set, so this process is in no allocation"):
        allocated_hosts(environ)
