"""How runs are started: worker processes, on this machine or by Ray on the nodes of a cluster."""
