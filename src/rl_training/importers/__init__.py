"""Models of other packages become runs: `sb3.import_sb3` reads Stable-Baselines3's without unpickling them."""
