"""What happened, and how it is sampled again: step records, rollouts, replay buffers."""
