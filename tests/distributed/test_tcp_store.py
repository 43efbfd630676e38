from __future__ import annotations

import ipaddress
import json
import multiprocessing
import os
from pathlib import Path

import psutil

from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.launch import LaunchPlan, launch


def note_listeners(context: DistributedContext, directory: str) -> None:
    context.barrier()
    parent = multiprocessing.parent_process()
    assert parent is not None
    processes = {"rank": psutil.Process(), "parent": psutil.Process(parent.pid)}
    found = {
        name: [c.laddr.ip for c in process.net_connections("inet") if c.status == "LISTEN"]
        for name, process in processes.items()
    }
    Path(directory, f"{context.rank}.json").write_text(json.dumps(found))
    # GPUs' ranks would listen there, which none here does.
    assert os.environ["NCCL_SOCKET_IFNAME"] == f"={os.environ['GLOO_SOCKET_IFNAME']}"
    context.barrier()


def test_ranks_of_one_machine_listen_on_the_loopback_interface_alone(tmp_path: Path) -> None:
    plan = LaunchPlan(2, "cpu", threads=1, timeout=60)
    launch(note_listeners, str(tmp_path), plan, tmp_path)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    addresses = [ip for one in found for ips in one.values() for ip in ips]
    assert all(one["parent"] for one in found), "the meeting point itself is seen"
    assert [ip for ip in addresses if not ipaddress.ip_address(ip).is_loopback] == []
