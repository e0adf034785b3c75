"""Storage and sampling of transitions: rollout buffers and replay buffers."""
