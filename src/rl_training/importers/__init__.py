"""Models of other packages become runs: `sb3.import_sb3` reads those of Stable-Baselines3 without unpickling them."""
