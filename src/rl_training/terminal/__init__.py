"""The terminal: output streams whose failure does not end a run, and progress bars."""
