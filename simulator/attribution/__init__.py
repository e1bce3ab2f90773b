"""Attribution: finds the program line, or the DDP wrapper, phase, bucket and step, to which a call belongs."""
