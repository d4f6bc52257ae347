"""The status of a node, as the node agent sends it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

from shoal.config.plain import from_plain
from shoal.heartbeat import Beat
from shoal.launch.exit_records import ExitRecord
from shoal.launch.node import NodeStatus

BEAT = Beat(
    rank=9,
    phase="rollout",
    iteration=3,
    marks=7,
    idle=0.5,
    silent=0.0,
    limit=math.inf,
    pid=11,
    started=12,
    host="b",
)
RECORD = ExitRecord(rank=8, host="b", ending="done", time=1.5, report={"rank": 8, "last_row": {"loss": None}})


def test_a_status_is_the_same_after_it_has_crossed_as_json() -> None:
    status = NodeStatus(
        launcher="",
        rendezvous_port=4000,
        alive=(9,),
        ended={8: "it left with exit code 0"},
        places={8: "closing"},
        beats=(BEAT,),
        exit_records={8: RECORD, 9: replace(RECORD, ending="failed", log_bytes=17)},
        lines=("ä",),
        rows=({"iteration": 1.0, "Loss/value": None},),
    )
    assert from_plain(NodeStatus, json.loads(json.dumps(asdict(status)))) == status
