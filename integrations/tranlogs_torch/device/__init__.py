"""State on a GPU: streams, the pinned ring, gathers into flat memory, copies to the host, digests."""
