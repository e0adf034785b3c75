"""A process that holds a Ray cluster on this machine; it reads a command per line and answers each with a line of JSON.

`add` (with variables as JSON) adds a node with one processor, `remove PID` and `kill PID` end the node of that raylet,
`clear` ends all nodes but the head, `nodes` gives the ids of those that are alive. At the end of its input it ends
the cluster.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

from ray.cluster_utils import Cluster


def node_with(cluster: Cluster, raylet: int) -> Any:
    """The node that this raylet belongs to."""
    for node in cluster.worker_nodes:
        if any(info.process.pid == raylet for info in node.all_processes.get("raylet", [])):
            return node
    raise LookupError(raylet)


def kill_raylet(cluster: Cluster, raylet: int) -> None:
    """Kill a raylet; it is reaped, since its task would go on beside a zombie for a minute."""
    node = node_with(cluster, raylet)
    (info,) = node.all_processes["raylet"]
    info.process.kill()
    info.process.wait()
    cluster.remove_node(node, allow_graceful=False)


def carry_out(cluster: Cluster, command: str, rest: str) -> Any:
    """Do what a line says."""
    if command == "add":
        cluster.add_node(num_cpus=1, env_vars=json.loads(rest or "{}"))
    elif command == "remove":
        cluster.remove_node(node_with(cluster, int(rest)), allow_graceful=False)
    elif command == "kill":
        kill_raylet(cluster, int(rest))
    elif command == "clear":
        for node in list(cluster.worker_nodes):
            cluster.remove_node(node, allow_graceful=False)
    elif command == "nodes":
        return [node["NodeID"] for node in cluster.global_state.node_table() if node["Alive"]]
    return None


def main() -> None:
    """Hold the cluster until the input ends."""
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        print(json.dumps(cluster.address), file=answers, flush=True)
        try:
            for line in sys.stdin:
                command, _, rest = line.strip().partition(" ")
                try:
                    answer: Any = {"answer": carry_out(cluster, command, rest)}
                except LookupError as error:
                    answer = {"error": repr(error)}
                print(json.dumps(answer), file=answers, flush=True)
        finally:
            cluster.shutdown()


if __name__ == "__main__":
    main()
