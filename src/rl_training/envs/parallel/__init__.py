"""Many environments stepped as one: in this process, in worker processes, or by one simulator."""
