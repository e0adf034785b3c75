"""Update rules: they know tensors, and nothing of environments, files or loops."""
