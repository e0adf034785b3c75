"""The report: one self-contained HTML page about runs, as a file (`report`) or served live (`ui`)."""
