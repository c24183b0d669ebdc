"""Keys: each distinct one of a batch once (dedup), and which server each lives on (placement)."""
