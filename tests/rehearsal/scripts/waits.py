"""Waits for input."""

name = input("name of the experiment: ")
print(name)
