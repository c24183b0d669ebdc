"""Nodes of the Ray cluster that this process is connected to: which are there, and which are about to leave.

A node is being drained from the moment when Ray is told that it will leave: by its autoscaler, or by `ray drain-node`.
Nothing new starts there, and what runs goes on until somebody ends the node.
"""

from __future__ import annotations

from collections.abc import Mapping


def staying_nodes() -> dict[str, Mapping[str, float]]:
    """The resources of the nodes that are there and stay, by Ray's id of the node."""
    import ray

    leaving = leaving_nodes()
    return {
        node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in leaving
    }


def is_elsewhere(resource: str, node: str) -> bool:
    """Whether a node other than this one has units of a resource, and stays."""
    return any(resources.get(resource) for name, resources in staying_nodes().items() if name != node)


def leaving_nodes() -> set[str]:
    """Ray's ids of the nodes that are being drained, also of those that have gone since."""
    from ray._private.state import state

    return set(state.get_draining_nodes())


def own_node() -> str:
    """Ray's id of the node on which this process is."""
    import ray

    return str(ray.get_runtime_context().get_node_id())
