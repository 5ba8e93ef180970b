"""Base types of the tensor formats: trains, their cores, operators and serialisation."""
