"""torch steps the model: FSDP2 over replicas, torch.distributed.pipelining over stages."""
