"""A job on a Ray cluster of two nodes, both on this machine: python examples/ray_cluster.py [ROWS]

Run it from the folder above examples/, with `pip install 'heterps[ray]'`. On several machines the nodes are started by
`ray start` instead: docs/how-to/ray.md.
"""

import subprocess
import sys
from pathlib import Path

from ray.cluster_utils import Cluster

from heterps.data.generate import generate

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000

if not Path("data/criteo").exists():
    generate("data/criteo", ROWS, 5000)
Path("/tmp/ray").mkdir(exist_ok=True)  # where Ray notes the address of a cluster
cluster = Cluster()
try:
    for _ in range(2):  # two nodes, each with two units of the resource `cpu` of examples/laptop.yaml
        cluster.add_node(num_cpus=2, resources={"cpu": 2}, object_store_memory=80 << 20, include_dashboard=False)
    words = f"train examples/emulated.yaml --launcher ray --address {cluster.address} --workers 2"
    print(f"$ heterps {words}", flush=True)
    subprocess.run([sys.executable, "-m", "heterps", *words.split()], check=True)
finally:
    cluster.shutdown()
