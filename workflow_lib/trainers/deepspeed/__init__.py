"""DeepSpeed steps the model of :mod:`workflow_lib.trainers.native`."""
