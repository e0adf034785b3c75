"""Trackers of experiments: the loggers that a configuration names, beside the files of the run folder."""
