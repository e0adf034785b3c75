"""The verbs of the command line, one module per group: each parses its options, calls the package and prints."""
