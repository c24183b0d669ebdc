import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `snapshots` serves the tests beside it
