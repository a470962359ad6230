"""The position in the data: loaders, samplers, random number generators."""
