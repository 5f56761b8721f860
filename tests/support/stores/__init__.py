"""Real servers of object stores on loopback, and a proxy that makes faults between them and a client.

Each starter is a context manager; :mod:`stores.fixtures` has the fixtures.
"""
