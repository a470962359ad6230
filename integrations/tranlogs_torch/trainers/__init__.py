"""TranLogs inside the trainers that people use: `huggingface`, `lightning`, `accelerate`. Each imports its framework."""
