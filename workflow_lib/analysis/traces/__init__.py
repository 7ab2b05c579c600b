"""From one Kineto trace a rank to kernel classes, overlap, waiting and bandwidth."""
