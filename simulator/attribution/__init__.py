"""Attribution: finds which program line, or which DDP wrapper, phase, bucket and step, a call belongs to."""
