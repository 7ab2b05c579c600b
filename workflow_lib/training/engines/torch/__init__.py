"""torch as the engine: FSDP2 for replicas, torch.distributed.pipelining for stages."""
