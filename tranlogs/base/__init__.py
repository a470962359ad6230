"""The ground floor: errors, types, settings, clocks, threads, and files that survive a crash."""
