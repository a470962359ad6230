"""What commands read of runs and journals, without disturbing who writes them."""
