"""Comparison of algorithms or settings: scores of whole runs, verdicts, and looks that were planned in advance."""
