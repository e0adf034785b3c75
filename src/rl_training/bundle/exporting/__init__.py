"""Writes bundles: the acting network as a list of operations, golden pairs, ONNX and the card. Needs torch."""
