"""How state becomes JSON and tensors, and back: types are kept, and nothing in a file can run code."""
