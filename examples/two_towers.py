"""Two towers, trained, exported and served: python examples/two_towers.py [ROWS]

train  -->  export  -->  serve: the score of a user and an item, over HTTP
                   -->  the items nearest to a user, by the vectors of the towers
"""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import heterps
from heterps.data.generate import generate

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
DATA, EXPORT = Path(f"data/match-{ROWS}"), Path(f"exports/match-{ROWS}")
HETERPS = [sys.executable, "-m", "heterps"]

if not DATA.exists():
    generate(DATA, ROWS, ROWS // 10, task="match")
run = heterps.train(
    name="match",
    model="match_net",
    data=DATA / "train",
    test=DATA / "test",
    dense=[],
    slots=["user", "segment", "item", "category", "negative", "negative_category"],
    same_ids={"negative": "item", "negative_category": "category"},  # an item is the same item on either side
    batch_size=min(1024, ROWS // 100),
)
print(f"test AUC {run.summary['auc']:.4f}; the teacher has {run.summary['teacher_auc']:.4f}")
if not EXPORT.exists():
    subprocess.run([*HETERPS, "export", str(run.folder), "--to", str(EXPORT)], check=True)

# The first sample of the test set: whom is it about, and how well does the item suit him?
sample = pq.read_table(DATA / "test" / "part-00000.parquet").slice(0, 1).drop_columns(["label"])
with subprocess.Popen([*HETERPS, "serve", str(EXPORT), "--port", "0", "--json"], stdout=subprocess.PIPE) as server:
    try:
        url = json.loads(server.stdout.readline())["url"]
        asked = json.dumps({"rows": sample.to_pylist()}).encode()
        request = urllib.request.Request(f"{url}/score", asked, {"Content-Type": "application/json"})
        print("served:", urllib.request.urlopen(request, timeout=60).read().decode())
    finally:
        server.terminate()

# The items for this user: the vector of one tower against those that the export has of all items.
pq.write_table(sample, EXPORT.with_suffix(".user.parquet"))
words = [EXPORT.with_suffix(".user.parquet"), "--out", EXPORT.with_suffix(".vector.parquet"), "--vectors", "user"]
subprocess.run([sys.executable, EXPORT / "score.py", *words], check=True)
user = np.stack(pq.read_table(EXPORT.with_suffix(".vector.parquet"))["vector"].to_numpy())[0]
items = pq.read_table(EXPORT / "items.parquet")
near = np.argsort(-np.stack(items["vector"].to_numpy()) @ user)[:5]
print(f"of {items.num_rows:,} items, the nearest to user {sample['user'][0]}:", items["item"].take(near).to_pylist())
